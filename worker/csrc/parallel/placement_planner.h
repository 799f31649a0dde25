// Chooses how the devices of a gang hold what a step begins with, so that it takes the least time: batches in rows (data parallel) or with all;
// weights as copies, or in rows of a dimension (tensor parallel; with batches in rows, as ZeRO's third stage keeps them). Where nothing that is
// found fits a device, it is data parallelism, whose owners (owners.h) make room.
//
// Weights that come to the same argument of the same call, as those of repeated layers do, are held alike. From each of a few beginnings the classes
// are changed one by one, the largest first, as long as that takes time off what StepSimulation says.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/gang_plan.h>

#include "gang/gang.h"
#include "parallel/step_record.h"
#include "parallel/step_simulation.h"

namespace forebay::worker {

// The periods of rows in which a storage of so many bytes may rest that a call is given so: of each dimension, and of a third or half of it.
std::vector<int64_t> row_periods(const wire::Geometry& view, int64_t bytes, int64_t devices);

class PlacementPlanner {
 public:
  // `device_bytes`: the memory of each. `decided`: the periods of what rests in rows already, 0 of what is copies.
  PlacementPlanner(const StepRecord& step, Gang& gang, StepSimulation& simulation, int64_t device_bytes, const std::unordered_map<uint64_t, int64_t>& decided);

  // Whether anything is left to decide of the weights.
  bool has_choice() const { return !classes_.empty(); }
  StepPlacement best();
  // The best that was found, its beginning and what was found otherwise; the weights as that holds them.
  wire::GangPlan reported(const StepPlacement& chosen) const;

 private:
  // Weights that are held alike.
  struct Class {
    uint64_t call = 0;                 // the number of its template
    size_t tensor = 0;                 // its argument
    std::vector<uint64_t> ids;
    int64_t bytes = 0;                 // of all
    std::vector<int64_t> periods;      // in which they may rest
  };
  struct Choice {
    StepPlacement placement;
    StepCost cost;
    double score = 0;  // seconds, and what would not fit as seconds
  };

  static wire::Layout layout_of(const StepPlacement& placement);
  void collect_classes(const std::unordered_map<uint64_t, int64_t>& decided);
  Choice choice(StepPlacement placement);
  static std::vector<std::pair<int64_t, int64_t>> turns_of(const Class& one);
  Choice improved(Choice from);
  Choice settled(Choice choice);
  bool fits(const Choice& choice) const { return choice.cost.bytes <= room_; }
  bool may_go_on() const { return simulated_ < kCallsMax; }

  static constexpr size_t kCallsMax = 400'000;  // that are simulated, some microseconds each

  const StepRecord& step_;
  Gang& gang_;
  StepSimulation& simulation_;
  const int64_t room_;
  std::vector<Class> classes_;  // the largest first
  StepPlacement decided_;
  size_t simulated_ = 0;
  std::map<wire::Layout, Choice> found_;  // the best of each
};

}  // namespace forebay::worker
