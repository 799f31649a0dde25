// What a segment makes of inputs of any kind, by the kernels of tier 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <forebay/traces.h>

#include "call/plan.h"
#include "tier2/specialization.h"

namespace forebay::worker {

// A segment as it came last.
struct SegmentRun {
  const Specialization& specialization;
  const Binding& binding;
  const std::vector<wire::Step*>& path;
  const std::vector<std::unique_ptr<Plan>>& plans;
  const Device& device;
};

enum class Precision { kOwn, kDouble };

// Those of its specialization's outputs in their order, of inputs such as its library takes, which stay as they are. Throws what its calls throw, for
// one that has no kernel in double precision.
std::vector<at::Tensor> results_of(const SegmentRun& run, const std::vector<at::Tensor>& inputs, Precision precision);

}  // namespace forebay::worker
