// Runs one call of a plan.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include <ATen/core/stack.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "device.h"
#include "failure.h"
#include "plan.h"
#include "storage.h"

namespace forebay::worker {

class Caller {
 public:
  Caller(const Device& device, Storages& storages) : device_(device), storages_(storages) {}

  // Takes a call's words, as many as the plan says. Throws wire::WireError; any other trouble waits for `run`.
  void bind(Plan& plan, const wire::Words& words);

  // Runs the call that was bound, and takes over its results. Throws CommandError or what the operator throws.
  void run(Plan& plan);

  // As run, but writes each output to `told`; unknown ones get the ids from `first_storage` on.
  void run_and_tell(Plan& plan, uint64_t first_storage, wire::Writer& told);

  // Poisons what the bound call would have produced and changed.
  void poison(const Plan& plan, const Cause& cause);
  // As poison, for a call that the client knows has not begun.
  void poison_results(const Cause& cause);

  // Why an argument cannot be read, or null.
  const Cause& poisoned_by() const { return poisoned_by_; }

 private:
  struct TensorArgument {
    Entry* entry;          // null for scalar tensors and none
    const Layout* layout;
    int64_t offset;
    const c10::TensorImpl* impl;
  };

  c10::IValue value(ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue tensor(const ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue scalar_tensor(ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue list(ArgumentPlan& argument, const uint64_t*& word);
  void bind_outputs(const std::vector<OutputPlan>& outputs, const uint64_t*& word);
  void execute(Plan& plan);
  void check_mutated(const Plan& plan) const;
  void take(const OutputPlan& output, c10::IValue& result);
  void take_new(const OutputPlan& output, c10::IValue& result);
  void take_same(const OutputPlan& output, const c10::IValue& result) const;
  void tell(const OutputPlan& output, c10::IValue& result, wire::Writer& told);
  void tell_tensor(const OutputPlan& output, at::Tensor tensor, wire::Writer& told);

  const Device& device_;
  Storages& storages_;
  torch::jit::Stack stack_;
  std::vector<TensorArgument> tensors_;
  std::vector<uint64_t> new_ids_;   // that the client chose for this call
  std::vector<uint64_t> told_ids_;  // that it will be told
  size_t next_new_ = 0;
  uint64_t next_told_ = 0;
  uint64_t seed_ = 0;
  uint64_t counter_ = 0;
  Cause poisoned_by_;
  std::exception_ptr trouble_;  // no memory for an argument
};

}  // namespace forebay::worker
