// The tensors that a call is given and makes, in the order of its words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/storage.h"

namespace forebay::worker {

// `use`: of the place of each one's words, and its storage.
template <class Use>
void for_each_tensor(const Plan& plan, const wire::Words& words, const Use& use) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kStorage) use(index, words[index]);
  }
}

// `use`: of the number of each one that is made, and its storage.
template <class Use>
void for_each_made(const Plan& plan, const wire::Words& words, const Use& use) {
  for (size_t index = 0, made = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kNew) use(made++, words[index]);
  }
}

inline void collect(const std::vector<ArgumentPlan>& arguments, std::vector<const Layout*>& layouts) {
  for (const auto& argument : arguments) {
    if (argument.tag == wire::Tag::kTensor) layouts.push_back(argument.layout.get());
    collect(argument.items, layouts);
  }
}

// Of the tensor arguments.
inline std::vector<const Layout*> layouts_of(const Plan& plan) {
  std::vector<const Layout*> layouts;
  collect(plan.arguments, layouts);
  return layouts;
}

inline wire::Geometry geometry_of(const Layout& layout) { return {static_cast<uint8_t>(layout.dtype), 0, layout.sizes, layout.strides}; }

}  // namespace forebay::worker
