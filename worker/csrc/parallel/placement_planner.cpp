#include "parallel/placement_planner.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "call/call_storages.h"
#include "sharding/local_call.h"

namespace forebay::worker {

namespace {

constexpr int64_t kWeightBytes = int64_t{64} << 10;  // smaller ones are copies
constexpr int64_t kFusedMax = 3;   // weights of so many layers lie one behind the other, as those of queries, keys and values
constexpr double kRoomShare = 0.95; // of a device's memory: operators keep something while they run
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
    if (gang_.templates().length_of_items(call.number) > 1) continue;  // what it alone is given, as an optimizer's states, follows the rest of an item
    const LocalCall local(gang_.templates().template_of(call.number));
    size_t tensor = 0;
    for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) {
      const auto& found = step_.storages().at(id);
      const size_t number = tensor++;
      if (!found.was_there || found.bytes < kWeightBytes || std::exchange(is_known[id], true)) return;
      auto& same = classes[{call.number, number, found.bytes}];
      same.call = call.number;
      same.tensor = number;
      if (same.ids.empty()) same.periods = row_periods(local.tensors()[number]->geometry, found.bytes, static_cast<int64_t>(gang_.size()));
      same.ids.push_back(id);
      same.bytes += found.bytes;
    });
  }
  for (auto& [key, one] : classes) classes_.push_back(std::move(one));
  std::stable_sort(classes_.begin(), classes_.end(), [](const Class& one, const Class& other) { return one.bytes > other.bytes; });
}

std::vector<int64_t> row_periods(const wire::Geometry& view, int64_t bytes, int64_t devices) {
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
  const auto [best, is_new] = found_.try_emplace(layout_of(choice.placement), choice);
  if (!is_new && choice.score < best->second.score) best->second = choice;
  return choice;
}

wire::Layout PlacementPlanner::layout_of(const StepPlacement& placement) {
  if (placement.batches_in_rows) return placement.rows.empty() ? wire::Layout::kData : wire::Layout::kRows;
  return placement.rows.empty() ? wire::Layout::kWhole : wire::Layout::kTensor;
}

// The periods of its weights by turns: all alike, or rows of one dimension after rows of the other, as layers that follow each other want them.
std::vector<std::pair<int64_t, int64_t>> PlacementPlanner::turns_of(const Class& one) {
  std::vector<std::pair<int64_t, int64_t>> turns;
  for (const int64_t period : one.periods) turns.emplace_back(period, period);
  turns.emplace_back(0, 0);
  if (one.ids.size() < 2 || one.periods.size() < 2) return turns;
  turns.emplace_back(one.periods[0], one.periods[1]);
  turns.emplace_back(one.periods[1], one.periods[0]);
  return turns;
}

PlacementPlanner::Choice PlacementPlanner::improved(Choice from) {
  for (int pass = 0; pass < kPasses; ++pass) {
    const double before = from.score;
    for (const auto& one : classes_) {
      for (const auto& [first, second] : turns_of(one)) {
        if (!may_go_on()) return from;
        StepPlacement changed = from.placement;
        for (size_t turn = 0; turn < one.ids.size(); ++turn) {
          const int64_t period = turn % 2 == 0 ? first : second;
          if (period == 0) changed.rows.erase(one.ids[turn]);
          else changed.rows[one.ids[turn]] = period;
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
  if (is_cheap && fits(copies)) return copies.placement;
  StepPlacement everywhere = decided_;
  everywhere.batches_in_rows = false;
  Choice best = improved(choice(everywhere));
  StepPlacement rows = decided_;
  for (const auto& one : classes_) {
    for (const uint64_t id : one.ids) {
      if (!one.periods.empty()) rows.rows[id] = one.periods.front();
    }
  }
  for (Choice from : {copies, choice(rows)}) {
    Choice other = improved(std::move(from));
    if (other.score < best.score) best = std::move(other);
  }
  best = settled(std::move(best));
  const bool may_be_copies = decided_.rows.empty() || fits(copies);  // what was decided may be more than a device has room for
  if (!fits(best) && may_be_copies) return copies.placement;
  return best.score < kGain * copies.score ? best.placement : copies.placement;
}

wire::GangPlan PlacementPlanner::reported(const StepPlacement& chosen) const {
  wire::GangPlan plan;
  plan.layout = layout_of(chosen);
  plan.room_bytes = static_cast<uint64_t>(room_);
  for (const auto& one : classes_) {
    const LocalCall call(gang_.templates().template_of(one.call));
    const auto& view = call.tensors()[one.tensor]->geometry;
    std::map<uint64_t, uint64_t> counts;  // by what is said of the rows
    for (const uint64_t id : one.ids) {
      const auto rows = chosen.rows.find(id);
      const auto local = rows == chosen.rows.end() ? std::nullopt : local_view(view, item_bytes_of(view), rows->second, static_cast<int64_t>(gang_.size()));
      ++counts[local ? local->dimension + 1 : 0];
    }
    const uint64_t each = static_cast<uint64_t>(one.bytes) / one.ids.size();
    for (const auto& [rows_of, count] : counts) {
      plan.weights.push_back({gang_.templates().operator_of(one.call).schema().name(), {view.sizes.begin(), view.sizes.end()}, count, count * each, rows_of});
    }
  }
  for (const auto& [layout, choice] : found_) {
    plan.considered.push_back({layout, static_cast<uint64_t>(1e9 * choice.cost.seconds()), static_cast<uint64_t>(choice.cost.bytes)});
  }
  return plan;
}

}  // namespace forebay::worker
