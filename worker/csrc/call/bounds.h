// Whole numbers in tensors that lead into other tensors, where a kernel follows them unchecked: looked at before each call.
#pragma once

#include "call/plan.h"

namespace forebay::worker {

// Holds the arguments of a call against the bounds of its plan; throws c10::IndexError.
void check_bounds(const Plan& plan, const torch::jit::Stack& stack);
// As check_bounds, one of its bounds alone.
void check_bound(const Plan& plan, const Bound& bound, const torch::jit::Stack& stack);

}  // namespace forebay::worker
