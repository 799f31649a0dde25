// What a step costs if storages lie so at its beginning: it is followed call by call, with the same rules by which calls are carried out
// (data_parallel.h), but nothing is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/call_seconds.h"
#include "parallel/step_record.h"
#include "sharding/way.h"

namespace forebay::worker {

constexpr int64_t kSmallSumBytes = int64_t{1} << 20;  // sums of fewer bytes are made together; larger ones may be one owner's (owners.h)

// How what a step begins with is held.
struct StepPlacement {
  bool batches_in_rows = true;                       // else each device has all of them
  std::unordered_map<uint64_t, int64_t> rows;        // the periods of what rests in rows; all else is copies
};

// Of a step.
struct StepCost {
  double compute_s = 0;  // until all devices are done
  double move_s = 0;
  int64_t bytes = 0;     // at most, on a device
  StepPlacement rests;   // how it leaves what it began with

  double seconds() const { return compute_s + move_s; }
};

// What is known of the calls.
struct CallRules {
  // How one with such placements is carried out; a whole one stands for no rule.
  std::function<const Way&(const StepRecord::Call& call, const HeldLookup& held)> way_of;
  // Of a template, on one device that computes all of it.
  std::function<double(uint64_t number)> seconds_of;
  // Whether owners carry it out, each its own items (owners.h), where nothing lies in rows.
  std::function<bool(const StepRecord::Call& call)> has_owners;
};

class StepSimulation {
 public:
  StepSimulation(const StepRecord& step, int64_t devices, const DeviceRates& rates, CallRules rules);

  // `returns_rows`: copies of what rests in rows go after each call, so that they take no room.
  StepCost cost(const StepPlacement& begin, bool returns_rows);

 private:
  void note_owned();
  void begin();
  void carry_out(const StepRecord::Call& call);
  void merge_for(const std::vector<uint64_t>& ids);
  void copy_for(const StepRecord::Call& call, const Way& way);
  void turn_for(const StepRecord::Call& call, const Way& way);
  void turn_back(const StepRecord::Call& call, const Way& way);
  void turn(const std::vector<uint64_t>& ids, const std::vector<std::pair<size_t, int64_t>>& turned);
  // Until each device has done its part of it.
  double seconds_of(const StepRecord::Call& call, const Way& way) const;
  void add_up_for(const Composition& composition);
  void place_whole(const StepRecord::Call& call);
  void place_results(const StepRecord::Call& call, const Way& way);
  void hold(uint64_t id, Held held);
  void leave(uint64_t id);
  int64_t bytes_of(uint64_t id, const Held& held) const;
  // Owners carry out a call: what it is given lies with one device each, as what it makes, until another call is given it.
  void leave_to_owners(const StepRecord::Call& call);
  void take_from_owners(const std::vector<uint64_t>& ids);
  void move(double bytes);
  // That leave a device.
  double bytes_of_sum(int64_t bytes) const { return 2.0 * static_cast<double>(bytes) * static_cast<double>(devices_ - 1) / static_cast<double>(devices_); }
  bool is_in_rows(const std::vector<uint64_t>& ids) const;
  Held held(uint64_t id) const;
  // How a new storage is held of which the call that makes it says this.
  std::optional<Placement> placed(uint64_t id, const std::optional<Placement>& made) const;

  const StepRecord& step_;
  const int64_t devices_;
  const DeviceRates rates_;
  const CallRules rules_;
  std::vector<std::vector<uint64_t>> ends_;  // by call: what it is the last to use
  std::unordered_map<uint64_t, int64_t> batches_;  // the periods of those that may be in rows
  std::unordered_set<uint64_t> owned_;       // what no call uses but owners'
  const StepPlacement* placement_ = nullptr;
  bool returns_rows_ = false;
  std::unordered_map<uint64_t, Held> held_;
  std::unordered_set<uint64_t> at_owners_;
  int64_t bytes_ = 0;
  StepCost cost_;
};

}  // namespace forebay::worker
