// Runs one call of a plan.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/stack.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "base/running.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"

namespace forebay::worker {

class Caller {
 public:
  Caller(const Device& device, Storages& storages) : device_(device), storages_(storages) {}

  // Takes a call's words, as many as the plan says. Throws wire::WireError; any other trouble waits for `run`.
  void bind(Plan& plan, const wire::Words& words);

  // As bind, of a call that another device may carry out: it cannot be run here.
  void check(Plan& plan, const wire::Words& words);

  // Takes the results of the checked call for made. Throws CommandError.
  void take_results(const Plan& plan);

  // Runs the call that was bound, and takes over its results. Throws CommandError or what the operator throws.
  void run(Plan& plan);

  // Runs the call that was bound, and gives its results away. Throws as run.
  torch::jit::Stack results(Plan& plan);

  // Whose memory a result is put into, by its id; null: it is not wanted.
  using Target = std::function<Entry*(uint64_t id)>;
  // Carries out a call that was carried out before, for the results that are wanted. Throws as run.
  void rerun(Plan& plan, const wire::Words& words, const Target& target);

  // As run, but writes each output to `told`; unknown ones get the ids from `first_storage` on.
  void run_and_tell(Plan& plan, uint64_t first_storage, wire::Writer& told);

  // Holds the words of a call that is not carried out against the session's storages. Throws wire::WireError.
  void skip(const Plan& plan, const wire::Words& words) const;
  // As skip, without results: the client is told so.
  void skip_question(const Plan& plan, const wire::Words& words) const;

  // What was made of the bound call's results is gone.
  void withdraw();

  // Looks at numbers of a storage that a call is about to be given, where they are not known. Throws c10::Error where one is out of its range.
  void hold_to_range(const Plan& plan, const NumberRange& range, Entry& entry, const Layout& layout, int64_t offset) const;

  // The call that is being carried out; for any thread.
  Running& running() { return running_; }

  // Whether there was no memory for an argument of the bound call: then it has not begun.
  bool lacks_memory() const { return trouble_ != nullptr; }

  // Why an argument cannot be used, or null.
  const Cause& unusable() const { return unusable_; }

 private:
  struct TensorArgument {
    Entry* entry;          // null for scalar tensors and none
    const Layout* layout;
    int64_t offset;
    const c10::TensorImpl* impl;
  };

  bool runs_here() const { return here_ && device_.computes(); }
  void fill(Plan& plan, const wire::Words& words);
  c10::IValue value(ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue tensor(const ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue scalar_tensor(ArgumentPlan& argument, const uint64_t*& word);
  c10::IValue list(ArgumentPlan& argument, const uint64_t*& word);
  void bind_outputs(const std::vector<OutputPlan>& outputs, const uint64_t*& word);
  void execute(Plan& plan);
  // Before the kernels of an accelerator would find what they assert. Throws c10::Error.
  void check_ranges(const Plan& plan);
  void check_range(const Plan& plan, const NumberRange& range, const TensorArgument& argument, const at::Tensor& numbers) const;
  static std::optional<at::Tensor> on_host(const TensorArgument& argument);
  void forget_numbers(const Plan& plan);
  void note_made(const Plan& plan, const Interval& made);
  void check_mutated(const Plan& plan) const;
  void take(const OutputPlan& output, c10::IValue& result);
  void take_new(const OutputPlan& output, c10::IValue& result);
  void take_same(const OutputPlan& output, const c10::IValue& result) const;
  void tell(const OutputPlan& output, c10::IValue& result, wire::Writer& told);
  void assemble_sparse(const Plan& plan);
  void tell_sparse(const OutputPlan& output, at::Tensor tensor, wire::Writer& told);
  void tell_tensor(const OutputPlan& output, at::Tensor tensor, wire::Writer& told);

  const Device& device_;
  Storages& storages_;
  Running running_;
  bool here_ = true;  // whether the present call is for this device
  const Target* target_ = nullptr;  // of a call that is carried out again
  torch::jit::Stack stack_;
  std::vector<TensorArgument> tensors_;
  std::vector<uint64_t> new_ids_;   // that the client chose for this call
  std::vector<uint64_t> told_ids_;  // that it will be told
  size_t next_new_ = 0;
  uint64_t next_told_ = 0;
  uint64_t seed_ = 0;
  uint64_t counter_ = 0;
  Cause unusable_;
  std::exception_ptr trouble_;  // no memory for an argument
};

}  // namespace forebay::worker
