// How the steps of a program are divided: what rests in rows, and which uploads are batches of rows. It is chosen (placement_planner.h) when a batch of
// a kind comes again, from the calls since it came before; and anew for weights that no plan knows.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/step_record.h"
#include "parallel/step_simulation.h"

namespace forebay::worker {

class StepPlan {
 public:
  using WayOf = decltype(CallRules::way_of);
  StepPlan(Gang& gang, Storages& storages, WayOf way_of);

  // An upload that the next call is the first to use, and how often its kind came before.
  void note_upload(const StepRecord::Upload& upload, int64_t came);
  void note(uint64_t number, const Plan& plan, const wire::Words& words);
  // Templates have new numbers from here on.
  void forget();

  // The period of the rows in which a storage rests; 0 of what rests otherwise.
  int64_t period_of(uint64_t id) const {
    if (periods_.empty()) return 0;
    const auto found = periods_.find(id);
    return found == periods_.end() ? 0 : found->second;
  }
  bool has_rows() const { return has_rows_; }
  // Whether each device has its rows of such a batch, rather than all of it.
  bool is_divided(const StepRecord::Kind& kind) const;

  // What was chosen, with an image of the session. None can be made while a step is recorded. Throws wire::WireError.
  bool is_recording() const { return record_.is_on(); }
  void put(wire::Writer& out) const;
  void get(wire::Reader& in);

 private:
  static constexpr int64_t kRecordsMax = 32;  // of a session

  void choose();

  Gang& gang_;
  Storages& storages_;
  WayOf way_of_;
  StepRecord record_;
  int64_t records_ = 0;
  std::unordered_map<uint64_t, int64_t> periods_;
  bool is_used_ = false;  // what was decided of, since the last upload: else the program has other weights now
  bool has_rows_ = false;
  bool divides_ = true;                           // batches that no step was recorded of
  std::map<StepRecord::Kind, bool> kinds_;
};

}  // namespace forebay::worker
