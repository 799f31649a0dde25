// What an operator began to change before it failed is put back.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "call/plan.h"

namespace forebay::worker {

// Whether kernels of this operator look at values while they write. To be called once, for a host's device.
void note_partial_writes(Plan& plan);

// Lives while a call runs. Copies what it writes to where it may fail in the middle; puts that back unless it is told to forget it.
class Rollback {
 public:
  Rollback(const Plan& plan, const torch::jit::Stack& stack) {
    if (plan.partial_writes != PartialWrites::kNone) [[unlikely]] keep(plan, stack);
  }
  ~Rollback();
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;

  void forget() { kept_.clear(); }

 private:
  void keep(const Plan& plan, const torch::jit::Stack& stack);
  void keep(const at::Tensor& tensor);

  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;  // a tensor, and a copy of it
};

}  // namespace forebay::worker
