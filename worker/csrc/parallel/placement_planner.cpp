#include "parallel/placement_planner.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "gang/call_storages.h"
#include "parallel/local_call.h"

namespace forebay::worker {

namespace {

constexpr int64_t kWeightBytes = int64_t{64} << 10;  // smaller ones are copies
constexpr int64_t kFusedMax = 3;   // weights of so many layers lie one behind the other, as those of queries, keys and values
constexpr double kRoomShare = 0.9; // of a device's memory: operators keep something while they run
constexpr double kCheapMoves = 0.15;  // of the time of a step: then nothing else is looked for
constexpr double kGain = 0.9;      // of the time of data parallelism, that something else must stay below
constexpr int kPasses = 2;

}  // namespace

PlacementPlanner::PlacementPlanner(const StepRecord& step, Gang& gang, StepSimulation& simulation, int64_t device_bytes,
                                   const std::unordered_map<uint64_t, int64_t>& decided)
    : step_(step), gang_(gang), simulation_(simulation), room_(static_cast<int64_t>(kRoomShare * static_cast<double>(device_bytes))) {
  for (const auto& [id, period] : decided) {
    if (period != 0 && step.storages().count(id) != 0) decided_.rows.emplace(id, period);
  }
  collect_classes(decided);
}

void PlacementPlanner::collect_classes(const std::unordered_map<uint64_t, int64_t>& decided) {
  std::unordered_map<uint64_t, bool> is_known;  // uploads, what is decided, and what has a class
  for (const auto& upload : step_.uploads()) is_known[upload.id] = true;
  for (const auto& [id, period] : decided) is_known[id] = true;
  std::map<std::tuple<uint64_t, size_t, int64_t>, Class> classes;
  for (const auto& call : step_.calls()) {
    const LocalCall local(gang_.templates().template_of(call.number));
    size_t tensor = 0;
    for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) {
      const auto& found = step_.storages().at(id);
      const size_t number = tensor++;
      if (!found.was_there || found.bytes < kWeightBytes || std::exchange(is_known[id], true)) return;
      auto& same = classes[{call.number, number, found.bytes}];
      if (same.ids.empty()) same.periods = periods_of(local.tensors()[number]->geometry, found.bytes);
      same.ids.push_back(id);
      same.bytes += found.bytes;
    });
  }
  for (auto& [key, one] : classes) {
    if (!one.periods.empty()) classes_.push_back(std::move(one));
  }
  std::stable_sort(classes_.begin(), classes_.end(), [](const Class& one, const Class& other) { return one.bytes > other.bytes; });
}

std::vector<int64_t> PlacementPlanner::periods_of(const wire::Geometry& view, int64_t bytes) const {
  const auto devices = static_cast<int64_t>(gang_.size());
  const int64_t item_bytes = item_bytes_of(view);
  std::vector<int64_t> periods;
  for (int64_t together = 1; together <= kFusedMax; ++together) {
    for (size_t dim = 0; dim < view.sizes.size(); ++dim) {
      if (view.sizes[dim] % together != 0) continue;
      const int64_t rows = view.sizes[dim] / together, period = period_of(view, dim, rows, item_bytes);
      if (rows % devices != 0 || period <= 0 || bytes % period != 0) continue;
      if (std::find(periods.begin(), periods.end(), period) == periods.end()) periods.push_back(period);
    }
  }
  return periods;
}

PlacementPlanner::Choice PlacementPlanner::choice(StepPlacement placement) {
  Choice choice{std::move(placement), {}, 0};
  choice.cost = simulation_.cost(choice.placement, /*returns_rows=*/false);
  simulated_ += step_.calls().size();
  if (!fits(choice)) {
    choice.cost = simulation_.cost(choice.placement, /*returns_rows=*/true);
    simulated_ += step_.calls().size();
  }
  const double excess = static_cast<double>(std::max<int64_t>(choice.cost.bytes - room_, 0)) / static_cast<double>(std::max<int64_t>(room_, 1));
  choice.score = choice.cost.seconds() * (1 + 100 * excess);
  return choice;
}

PlacementPlanner::Choice PlacementPlanner::improved(Choice from) {
  for (int pass = 0; pass < kPasses; ++pass) {
    const double before = from.score;
    for (const auto& one : classes_) {
      auto periods = one.periods;
      periods.push_back(0);
      for (const int64_t period : periods) {
        if (!may_go_on()) return from;
        StepPlacement changed = from.placement;
        for (const uint64_t id : one.ids) {
          if (period == 0) changed.rows.erase(id);
          else changed.rows[id] = period;
        }
        if (changed.rows == from.placement.rows) continue;
        Choice next = choice(std::move(changed));
        if (next.score < from.score) from = std::move(next);
      }
    }
    if (from.score >= before) break;
  }
  return from;
}

// What came to lie in rows in the step rests in them, too, as an optimizer's states.
PlacementPlanner::Choice PlacementPlanner::settled(Choice from) {
  Choice next = choice(from.cost.rests);
  return next.score <= from.score ? std::move(next) : std::move(from);
}

StepPlacement PlacementPlanner::best() {
  const Choice copies = choice(decided_);
  const bool is_cheap = copies.cost.move_s <= kCheapMoves * copies.cost.seconds();
  if (is_cheap || !fits(copies)) return copies.placement;
  StepPlacement everywhere = decided_;
  everywhere.batches_in_rows = false;
  Choice best = improved(choice(everywhere));
  StepPlacement rows = decided_;
  for (const auto& one : classes_) {
    for (const uint64_t id : one.ids) rows.rows[id] = one.periods.front();
  }
  for (Choice from : {copies, choice(rows)}) {
    Choice other = improved(std::move(from));
    if (other.score < best.score) best = std::move(other);
  }
  best = settled(std::move(best));
  return fits(best) && best.score < kGain * copies.score ? best.placement : copies.placement;
}

}  // namespace forebay::worker
