// A segment's calls as tasks of a pipeline (task.h): the batch in equal parts, each call at the stage whose weights it is given.
//
// Of a stage with several devices each takes a part in turn: what the parts make together is added up on each device, and then once over the stage's.
// What becomes of each part follows from the same rules by which calls are divided among devices (sharding/sharding.h). Sums over the parts are made where
// the parts are. A call that no rule divides is carried out once, on all of the batch. The tasks write to nothing that was there before the
// segment: steps that do, as an optimizer's, and those that lean on them, are left for later. So what fails can be done again from the beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call/templates.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/batches.h"
#include "pipeline/sliced_data.h"
#include "pipeline/stages.h"
#include "pipeline/task_graph.h"
#include "sharding/ways.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// Why a segment is no pipeline.
struct NotPipelined : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct PipelineShape {
  size_t begin = 0;   // of the segment's steps, those that are a pipeline
  size_t end = 0;
  int64_t parts = 0;  // of a batch
  int rows = 1;       // devices of a stage, which follow each other
  Stages stages;
  SlicedData data;

  int stage_of(int place) const { return place / rows; }
  // The device that carries out such a part of a stage.
  int place_of(int stage, int64_t part) const { return stage * rows + static_cast<int>(part % rows); }
};

class MicroBatches {
 public:
  // A storage of the client's that is there when the tasks are done.
  struct Result {
    uint64_t id;
    int place;
    int64_t bytes;
    c10::ScalarType dtype;
  };

  // `ways`: for as many parts. Throws NotPipelined.
  MicroBatches(const Path& path, const PipelineShape& shape, Gang& gang, Storages& storages, Templates& templates, const Batches& batches, Ways& ways);

  // The first step that is given a batch, or makes one of data by indices; none where there is none.
  static std::optional<size_t> first_step(const Path& path, Templates& templates, Storages& storages, const Batches& batches, const SlicedData& data);

  const std::vector<Task>& tasks() const { return graph_.tasks(); }
  const std::vector<Result>& results() const { return results_; }
  // Their ids, sorted.
  std::vector<uint64_t> kept() const;
  // Steps of the shape's that are to be carried out afterwards, in order.
  const std::vector<size_t>& left() const { return left_; }
  // After the last step that is given a part of a batch.
  size_t divided_end() const { return divided_end_; }
  // What was there before, and the device where a task wants it; and the batches among it.
  const std::unordered_map<uint64_t, int>& given() const { return given_; }
  const std::vector<uint64_t>& taken() const { return taken_; }

 private:
  // A storage of the client's: all of it, or its parts, or both.
  struct Value {
    int64_t bytes = 0;
    c10::ScalarType dtype = c10::ScalarType::Byte;
    bool was_there = false;
    bool is_batch = false;
    bool is_untouched = false;
    size_t since = 0;                // the step that made it
    std::optional<uint64_t> whole;   // these are numbers of the graph's
    std::vector<uint64_t> parts;
    int64_t period = 0;              // of the parts' rows

    uint64_t first() const { return whole ? *whole : parts.front(); }
  };
  // A call of the client's.
  struct Call {
    size_t step;
    uint64_t number;
    Plan& plan;
    wire::Words words;
    int stage = 0;
  };
  using Position = TaskGraph::Position;

  void note_left();
  void note_frees();
  bool is_result(uint64_t id) const { return ended_.count(id) == 0 || kept_for_left_.count(id) != 0; }
  // Whether what makes it may give it the client's number: nothing becomes of it afterwards.
  bool is_named(uint64_t id) const { return is_result(id) && rewritten_.count(id) == 0; }
  Value& value(uint64_t id);
  Value& made(uint64_t id, int64_t bytes, c10::ScalarType dtype, size_t step);
  void find_batch(const Call& call);
  // Has the call be given storages of their own in place of slices of data.
  void take_slices(Call& call);
  uint64_t taken_slice(const DataSlice& slice, size_t step);
  int stage_for(const Call& call);
  std::optional<int> stage_wanted_of(const Call& call) const;
  // Of the stage's devices, the one that has most of what a call is given that is carried out once.
  int place_for(const Call& call);
  int place_of(const Call& call, int64_t part) const { return shape_.place_of(call.stage, part); }
  int64_t missing_bytes(const Value& value, int place) const;
  // The first part on the device where what the parts of a call make together is wanted.
  size_t lead_of(const Call& call, uint64_t id) const;
  Held held(uint64_t id);
  void allocate(const wire::Step& step, size_t index);
  void carry_out(Call call);
  bool serves(const Way& way, const Call& call);
  void once(Call& call);
  void divided(const Way& way, Call& call);
  void composed(const Way& way, Call& call);
  // The words of a part's call, with what its device has.
  wire::Words words_of_part(const Way& way, Call& call, int64_t part);
  void place_untouched(const Way& way, const Call& call);
  void note_written(const Call& call, const std::vector<wire::Words>& words);
  uint64_t made_whole(Value& value, size_t step, uint64_t id);
  void cut(Value& value, int64_t period, size_t step);
  // Has this one of the parts be what they make together. Each first part on a device has those of all that are there.
  void merge(const std::vector<uint64_t>& parts, size_t lead, const Placement& placement, int64_t bytes, size_t step);
  void finish();
  int64_t bytes_of_part(int64_t bytes) const { return bytes / shape_.parts; }

  const Path& path_;
  const PipelineShape& shape_;
  Gang& gang_;
  Storages& storages_;
  Templates& templates_;
  const Batches& batches_;
  Ways& ways_;
  TaskGraph graph_;
  std::unordered_map<uint64_t, Value> values_;
  std::map<std::pair<uint64_t, int64_t>, uint64_t> slices_;  // numbers of the graph's, by the data and where they begin
  std::vector<bool> is_left_;                    // by step, from the shape's first on
  std::vector<size_t> left_;
  std::unordered_set<uint64_t> made_here_;       // by steps that are not left
  std::unordered_set<uint64_t> ended_;           // freed before the shape's end
  std::unordered_set<uint64_t> kept_for_left_;   // that steps are given which are left
  std::unordered_set<uint64_t> rewritten_;       // that steps write to
  std::vector<Result> results_;
  Stages wanted_;                                // where what the tasks make is used afterwards
  std::unordered_map<uint64_t, int> given_;
  std::vector<uint64_t> taken_;
  size_t divided_end_ = 0;
};

}  // namespace forebay::worker
