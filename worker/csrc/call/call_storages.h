// Which storages a call is given, writes to and makes.
#pragma once

#include <cstdint>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/plan.h"

namespace forebay::worker {

// The storages that a call is given, each once, in order.
std::vector<uint64_t> storages_of(const Plan& plan, const wire::Words& words);
// Those of them that the call writes to.
std::vector<uint64_t> written_of(const Plan& plan, const wire::Words& words);
// Whether the call writes to each tensor argument that has a storage.
std::vector<bool> writes_of(const Plan& plan);
// Whether a call that fails for want of memory may be carried out again: it writes to nothing, or only to what it does not read.
bool is_repeatable(const Plan& plan, const wire::Words& words);

// `use`: of each word of this kind.
template <class Use>
void for_each_storage(const Plan& plan, const wire::Words& words, wire::Word kind, const Use& use) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == kind) use(words[index]);
  }
}

}  // namespace forebay::worker
