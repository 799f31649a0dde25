// Carries out segments on several devices as a pipeline: each device, or as many devices together, have some of the layers, and work on one part of the batch
// while the next have the one before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/Storage.h>

#include "parallel/gang_caller.h"
#include "pipeline/micro_batches.h"
#include "pipeline/task_order.h"
#include "sharding/ways.h"
#include "tier2/executor.h"

namespace forebay::worker {

class PipelineExecutor final : public Executor {
 public:
  // `gang`: whose calls are divided by what was found of them. `homes`: of kPipeline and kMesh what can be a pipeline is one, of two parts for each device or more where there may
  // be, and is not compared with tier 1; of stages with one device, or with as many as can be. One that is steady is chosen by what is foretold alone.
  PipelineExecutor(const ExecutorContext& context, GangCaller& gang, Homes homes) : context_(context), gang_(gang), homes_(homes) {}

  void prepare(Candidate& candidate, const Candidates& all) override;
  // The pipeline's results are compared with tier 1's, which stay.
  void verify(Candidate& candidate) override;
  bool run(Candidate& candidate) override;
  void forget() override;

 private:
  struct Pipeline {
    PipelineShape shape;
    std::vector<size_t> cuts;
    Stages followers;    // what the steps after it use together with weights, as an optimizer's states
    double seconds = 0;  // as it is predicted, as the next three
    std::vector<int64_t> held;  // by device, the bytes that it holds at most
    bool spills = false; // what the steps after its tasks make may have to go by turns, or to the host
    double left_s = 0;   // of steps that are no tasks
    std::optional<double> foretold;  // what the step takes of the time that it takes as it is planned otherwise

    double step_s() const { return seconds + left_s; }
    int64_t bytes() const { return *std::max_element(held.begin(), held.end()); }
    int slower = 0;      // how often it was much slower than tier 1 when it was held against that
  };
  using Results = std::vector<MicroBatches::Result>;

  // Whether the candidate was carried out, as the worker before this one had it.
  bool resume(Candidate& candidate);
  // As an image has it, and back: none where it is of other devices.
  std::vector<uint64_t> packed(const Pipeline& pipeline) const;
  std::optional<Pipeline> unpacked(const std::vector<uint64_t>& numbers, const Path& path) const;
  // Throw NotPipelined.
  Pipeline chosen(const Path& path, size_t first, const SlicedData& data);
  Pipeline best_of(const Path& path, const Layers& layers, const PipelineShape& all, Layers::By by, bool spills);
  // Before anything is looked for, of one that is steady: where it cannot gain enough.
  void demand_chance(const Path& path);
  // Where it gains too little. `is_steady`: nothing is timed, so it must gain much.
  void demand_gain(const Pipeline& pipeline, bool is_steady);
  Pipeline pipeline_of(const Path& path, const Layers& layers, PipelineShape shape, const std::vector<size_t>& cuts, bool spills);
  std::optional<Pipeline> quicker(const Path& path, const Layers& layers, const Pipeline& than, const std::vector<size_t>& cuts);
  Pipeline improved(const Path& path, const Layers& layers, Pipeline from);
  // Layers of the fullest stage go to those beside it, until each has room. Takes off `trials`. Throws NotPipelined.
  Pipeline fitted(const Path& path, const Layers& layers, Pipeline from, int& trials);
  static std::vector<size_t> lighter_cuts(const Pipeline& pipeline, size_t layers);
  // How many devices a stage may have.
  std::vector<int> rows_of_stages() const;
  bool always() const { return homes_ == Homes::kPipeline || homes_ == Homes::kMesh; }
  // Of the path's steps, on one device.
  double work_of(const Path& path, size_t begin, size_t end);
  // What each device holds at most, of which so many bytes are made in the step.
  std::vector<int64_t> held_with(const Pipeline& pipeline, const MicroBatches& batches, std::vector<int64_t> bytes);
  bool has_room(const std::vector<int64_t>& held);
  // Throws NotPipelined.
  void demand_room(const std::vector<int64_t>& held);
  // What the tasks leave at each device, and what the steps after them make unless that spills.
  std::vector<int64_t> bytes_afterwards(const Path& path, const MicroBatches& batches, const Pipeline& pipeline);
  void note(const Pipeline& pipeline, bool serves);
  MicroBatches built(const Path& path, const PipelineShape& shape);
  // Whether its weights are those of the segment.
  static bool has_weights(const MicroBatches& batches, const Pipeline& pipeline);
  // What the pipeline makes; none where it could not be carried out: then nothing has changed but where storages lie.
  std::optional<MicroBatches> computed(const Path& path, const Pipeline& pipeline, std::string& why);
  // Whether the pipeline has carried it out; tier 1 has otherwise.
  bool carried_out(Candidate& candidate);
  // Weights come to their stages, and each device has room for so many bytes that the tasks make there. Throws CommandError.
  void place(const MicroBatches& batches, const Pipeline& pipeline, const std::vector<int64_t>& made_bytes);
  // Results become the session's storages.
  void adopt(const Results& results);
  // What the pipeline's steps free, once those are carried out that were left; and the steps after them.
  void finish(const Path& path, const PipelineShape& shape, const MicroBatches& batches);
  // Steps of tier 1's before the pipeline's. False where one fails.
  bool begin(const Path& path, const Pipeline& pipeline);
  // The bytes of a result, on the host. All must be settled.
  c10::Storage bytes_of(const MicroBatches::Result& result);
  // The results' bytes; they are gone then. None where there was no room.
  std::optional<std::vector<c10::Storage>> taken_of(const MicroBatches& batches);
  // Whether what the pipeline has made is what tier 1 has; none where there was no room to compare them.
  std::optional<bool> is_same(const MicroBatches& batches, const std::vector<c10::Storage>& found);
  DataParallel& data_parallel() { return *gang_.data_parallel(); }
  StepPlan& steps() { return data_parallel().batches().plan(); }
  Gang& gang() { return gang_.gang(); }

  const ExecutorContext context_;
  GangCaller& gang_;
  const Homes homes_;
  double took_s_ = 0;  // the tasks, the last time
  std::map<int64_t, std::unique_ptr<Ways>> ways_;     // by the number of parts
  std::unordered_map<uint64_t, Pipeline> pipelines_;  // by candidate
};

}  // namespace forebay::worker
