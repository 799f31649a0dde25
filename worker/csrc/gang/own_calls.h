// Templates of calls of this worker's own that change their first argument in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <forebay/wire.h>

#include "gang/gang_templates.h"

namespace forebay::worker {

// A tensor whose elements lie one behind the other.
inline wire::Argument dense(c10::ScalarType dtype, std::vector<int64_t> sizes) {
  wire::Argument argument;
  argument.tag = wire::Tag::kTensor;
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
  argument.geometry = {static_cast<uint8_t>(dtype), 0, std::move(sizes), std::move(strides)};
  return argument;
}

inline wire::Argument number_of(wire::Tag tag) {
  wire::Argument argument;
  argument.tag = tag;
  return argument;
}

// `name`: of the operator, after "aten::". Throws wire::WireError as making a plan does.
inline uint64_t in_place(GangTemplates& templates, const std::string& name, std::vector<wire::Argument> arguments) {
  const auto op = templates.own_operator(name);
  wire::Template source;
  source.op = op.number;
  source.arguments = std::move(arguments);
  wire::Output same;
  same.tag = wire::OutputTag::kSame;
  source.outputs.push_back(same);
  return templates.define_own(source, op.handle);
}

}  // namespace forebay::worker
