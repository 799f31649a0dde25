// How the steps of a program are divided: what rests in rows, and which uploads are batches of rows. It is chosen (placement_planner.h) when a batch of
// a kind comes again, from the calls since it came before; and anew for weights that no plan knows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include <forebay/gang_plan.h>

#include "device/storage.h"
#include "gang/gang.h"
#include "gang/gang_work.h"
#include "gang/step_times.h"
#include "parallel/step_record.h"
#include "parallel/step_simulation.h"

namespace forebay::worker {

class StepPlan {
 public:
  using WayOf = decltype(CallRules::way_of);
  StepPlan(Gang& gang, Storages& storages, const GangWork& work, WayOf way_of);

  // An upload that the next call is the first to use, and how often its kind came before.
  void note_upload(const StepRecord::Upload& upload, int64_t came);
  void note(uint64_t number, const Plan& plan, const wire::Words& words);
  // Templates have new numbers from here on.
  void forget();

  // Whether a product is given what one device keeps, and takes so much of it that it is to rest in rows from the first call on.
  bool is_given_large(const Plan& plan, const wire::Words& words) const;
  // Has such storages rest in rows by which this call can be divided, where it can.
  void divide_large(const StepRecord::Call& call, const HeldLookup& held);

  // The period of the rows in which a storage rests; 0 of what rests otherwise.
  int64_t period_of(uint64_t id) const {
    if (periods_.empty() || !rests_in_rows_) return 0;
    const auto found = periods_.find(id);
    return found == periods_.end() ? 0 : found->second;
  }
  bool has_rows() const { return has_rows_; }
  // Has a storage rest in rows from here on.
  void rest(uint64_t id, int64_t period) {
    periods_[id] = period;
    has_rows_ = true;
  }
  // What a step could be as a pipeline. And a step begins that is carried out so, or is not: then nothing rests in rows, since stages have the weights.
  void note_pipeline(wire::GangPlan::Pipeline pipeline) { pipeline_ = std::move(pipeline); }
  bool has_pipeline() const { return pipeline_.has_value(); }
  void begin_step(bool by_pipeline);
  // What the last plan says of a step.
  struct Foretold {
    double seconds;  // as it was chosen
    double work_s;   // of its calls, on one device
    bool fits;       // a device
  };
  std::optional<Foretold> foretold() const;
  // The last one that was chosen, and what the steps since then took; none where none was.
  std::optional<wire::GangPlan> reported() const;
  // Whether each device has its rows of such a batch, rather than all of it.
  bool is_divided(const StepRecord::Kind& kind) const;

  // What was chosen, with an image of the session, behind all else that it has of steps. None can be made while a step is recorded. Throws wire::WireError.
  bool is_recording() const { return record_.is_on(); }
  void put(wire::Writer& out) const;
  void get(wire::Reader& in);

 private:
  static constexpr int64_t kRecordsMax = 32;  // of a session
  static constexpr int64_t kLargeShare = 6;   // of a device: with a gradient, two states and what a step makes of them nothing else has room

  void choose();
  void note_step();
  // Whether it is to be divided so, if it can be, and nobody tried.
  bool is_large(uint64_t id) const;

  Gang& gang_;
  Storages& storages_;
  const GangWork& work_;
  WayOf way_of_;
  StepRecord record_;
  int64_t records_ = 0;
  std::unordered_map<uint64_t, int64_t> periods_;
  bool is_used_ = false;  // what was decided of, since the last upload: else the program has other weights now
  bool has_rows_ = false;
  bool rests_in_rows_ = true;
  bool divides_ = true;                           // batches that no step was recorded of
  std::map<StepRecord::Kind, bool> kinds_;
  std::optional<wire::GangPlan> planned_;
  double planned_work_s_ = 0;
  std::optional<wire::GangPlan::Pipeline> pipeline_;
  StepRecord::Kind planned_kind_;  // of the batch with which a step of that plan begins
  StepTimes times_;
};

}  // namespace forebay::worker
