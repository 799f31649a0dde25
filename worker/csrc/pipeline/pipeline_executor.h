// Carries out segments on several devices as a pipeline: each device has some of the layers, and works on one part of the batch while the next has the one before.
#pragma once

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
  // `gang`: whose calls are divided by what was found of them. `always`: what can be a pipeline is one, of two parts for each device or more where there may be, and is not
  // compared with tier 1.
  PipelineExecutor(const ExecutorContext& context, GangCaller& gang, bool always) : context_(context), gang_(gang), always_(always) {}

  void prepare(Candidate& candidate, const Candidates& all) override;
  // The pipeline's results are compared with tier 1's, which stay.
  void verify(Candidate& candidate) override;
  bool run(Candidate& candidate) override;
  void forget() override;

 private:
  struct Pipeline {
    PipelineShape shape;
    Stages followers;    // what the steps after it use together with weights, as an optimizer's states
    double seconds = 0;  // as it is predicted, as the next
    int64_t bytes = 0;   // of a device, at most
    int slower = 0;      // how often it was much slower than tier 1 when it was held against that
  };
  using Results = std::vector<MicroBatches::Result>;

  // Throws NotPipelined.
  Pipeline chosen(const Path& path, size_t first);
  Pipeline with_parts(const Path& path, const Layers& layers, PipelineShape shape, const std::vector<size_t>& cuts);
  double seconds_left(const Path& path, const Pipeline& pipeline);
  Stages followers_of(const Path& path, const PipelineShape& shape);
  // The most that a device holds. Throws NotPipelined where it cannot.
  int64_t demanded_room(const Pipeline& pipeline, const TaskOrder& order);
  void note(const Pipeline& pipeline, double seconds);
  MicroBatches built(const Path& path, const PipelineShape& shape);
  // What the pipeline makes; none where it could not be carried out: then nothing has changed but where storages lie.
  std::optional<MicroBatches> computed(const Path& path, const Pipeline& pipeline, std::string& why);
  // Whether the pipeline has carried it out; tier 1 has otherwise.
  bool carried_out(Candidate& candidate);
  void place(const MicroBatches& batches, const Pipeline& pipeline);
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
  const bool always_;
  double took_s_ = 0;  // the tasks, the last time
  std::map<int64_t, std::unique_ptr<Ways>> ways_;     // by the number of parts
  std::unordered_map<uint64_t, Pipeline> pipelines_;  // by candidate
};

}  // namespace forebay::worker
