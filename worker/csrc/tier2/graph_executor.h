// Carries out segments on an accelerator by graphs that were recorded of them (docs/reference/compiled.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "tier2/executor.h"
#include "tier2/partition.h"

namespace forebay::worker {

class GraphExecutor final : public Executor {
 public:
  explicit GraphExecutor(const ExecutorContext& context) : context_(context) {}

  // Carries the segment out, and records what of it can be.
  void prepare(Candidate& candidate, const Candidates& all) override;
  // Launches each graph twice, undoes what it did, and has tier 1 do the same.
  void verify(Candidate& candidate) override;
  bool run(Candidate& candidate) override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // Whether the steps could be recorded. Nothing of them is carried out.
  bool record(Recording& recording, const std::vector<Part>& parts, Candidate& candidate);
  // `made`: storages that the steps before have made; only these are freed.
  void record_step(const wire::Step& step, bool frees, std::vector<uint64_t>& made);
  // What becomes of the candidate once its parts are recorded.
  void settle_recorded(Candidate& candidate, std::vector<Part> parts, const std::string& why_not, const std::string& wrong, bool is_complete, int64_t room_bytes);
  // Whether a part of the segment that was recorded before has put it where it lies, and will each time.
  static bool is_result(const Entry& entry, const std::vector<Part>& parts);
  // Puts what the graph is given to where it wants it. False if that cannot be: then tier 1 says what is wrong, if anything is.
  bool prepare_inputs(Recording& recording, const Recording::Binding& binding);
  // Whether all storages are there that are to be, and no others.
  bool has_storages(Recording& recording, const Recording::Binding& binding, int64_t& made_bytes);
  // False if an input is not where it was when the graph was recorded.
  bool place_input(Recording& recording, size_t number, const Recording::Binding& binding);
  // The program may have kept what lies in the graph's memory since the last run: it moves out, unless the steps free it without a look at it.
  void vacate(Recording::Place& place, const Recording& recording, const Recording::Binding& binding);
  // False if the device failed: then the session is stopped.
  bool launch(Recording& recording, const Recording::Binding& binding);
  void take_results(Recording& recording, const Recording::Binding& binding);
  // False if there is nothing to compare.
  bool verify(Recording& recording, const Path& path, std::string& wrong);
  // Compares what two launches gave with what tier 1 has made since, and puts that where the graph's other parts look for it.
  void compare(Recording& recording, const Recording::Binding& binding, const Tensors& found, const Tensors& again, std::string& wrong);
  // What the graph makes of the session as it is, which it is again then. Throws c10::Error if there is no room, before anything changed.
  Tensors launch_and_undo(Recording& recording, const Recording::Binding& binding, const Tensors& before);
  // What lies there, as numbers in a row.
  at::Tensor flat(const Recording::Place& place, const c10::Storage& memory);

  const ExecutorContext context_;
};

}  // namespace forebay::worker
