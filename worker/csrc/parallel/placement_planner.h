// Chooses how the devices of a gang hold what a step begins with, so that it takes the least time: batches in rows (data parallel) or with all;
// weights as copies, or in rows of a dimension (tensor parallel; with batches in rows, as ZeRO's third stage keeps them). Where copies of all weights do
// not fit, nothing is chosen but data parallelism, whose owners (owners.h) make room.
//
// Weights that come to the same argument of the same call, as those of repeated layers do, are held alike. From each of a few beginnings the classes
// are changed one by one, the largest first, as long as that takes time off what StepSimulation says.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gang/gang.h"
#include "parallel/step_record.h"
#include "parallel/step_simulation.h"

namespace forebay::worker {

class PlacementPlanner {
 public:
  // `device_bytes`: the memory of each. `decided`: the periods of what rests in rows already, 0 of what is copies.
  PlacementPlanner(const StepRecord& step, Gang& gang, StepSimulation& simulation, int64_t device_bytes, const std::unordered_map<uint64_t, int64_t>& decided);

  // Whether anything is left to decide of.
  bool has_choice() const { return !classes_.empty(); }
  StepPlacement best();

 private:
  // Weights that are held alike.
  struct Class {
    std::vector<uint64_t> ids;
    int64_t bytes = 0;                 // of all
    std::vector<int64_t> periods;      // in which they may rest
  };
  struct Choice {
    StepPlacement placement;
    StepCost cost;
    double score = 0;  // seconds, and what would not fit as seconds
  };

  void collect_classes(const std::unordered_map<uint64_t, int64_t>& decided);
  std::vector<int64_t> periods_of(const wire::Geometry& view, int64_t bytes) const;
  Choice choice(StepPlacement placement);
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
};

}  // namespace forebay::worker
