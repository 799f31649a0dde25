#include "parallel/step_simulation.h"

#include <algorithm>

#include "call/call_storages.h"
#include "parallel/row_turn.h"

namespace forebay::worker {

namespace {

const std::optional<Placement> kEverywhere = Placement{Sharing::kCopies, 0, 0};

}  // namespace

StepSimulation::StepSimulation(const StepRecord& step, int64_t devices, const DeviceRates& rates, CallRules rules)
    : step_(step), devices_(devices), rates_(rates), rules_(std::move(rules)), ends_(step.calls().size()) {
  note_owned();
  for (const auto& [id, found] : step.storages()) {
    if (found.last < ends_.size()) ends_[found.last].push_back(id);
  }
  for (const auto& upload : step.uploads()) {
    const auto found = step.storages().find(upload.id);
    if (found != step.storages().end() && upload.period != 0) batches_[upload.id] = upload.period;
  }
}

void StepSimulation::note_owned() {
  for (const auto& [id, found] : step_.storages()) {
    if (found.was_there) owned_.insert(id);
  }
  for (const auto& call : step_.calls()) {
    if (rules_.has_owners(call)) continue;
    for (const uint64_t id : storages_of(*call.plan, call.words)) owned_.erase(id);
  }
}

StepCost StepSimulation::cost(const StepPlacement& begin, bool returns_rows) {
  placement_ = &begin;
  returns_rows_ = returns_rows;
  cost_ = {};
  cost_.rests.batches_in_rows = begin.batches_in_rows;
  this->begin();
  for (size_t call = 0; call < step_.calls().size(); ++call) {
    carry_out(step_.calls()[call]);
    for (const uint64_t id : ends_[call]) leave(id);
  }
  for (const auto& [id, held] : held_) {
    const auto found = step_.storages().find(id);
    const int64_t period = begin.rows.count(id) != 0 ? begin.rows.at(id) : held.period();
    if (found->second.was_there && period != 0) cost_.rests.rows.emplace(id, period);
  }
  return std::move(cost_);
}

void StepSimulation::leave_to_owners(const StepRecord::Call& call) {
  const auto leave = [&](uint64_t id) {
    const auto known = held_.find(id);
    const bool is_copy = known != held_.end() && known->second.placement && known->second.placement->sharing == Sharing::kCopies;
    if (!is_copy || at_owners_.count(id) != 0) return;
    bytes_ -= bytes_of(id, known->second);
    at_owners_.insert(id);
    bytes_ += bytes_of(id, known->second);
  };
  for (const uint64_t id : storages_of(*call.plan, call.words)) leave(id);
  for_each_storage(*call.plan, call.words, wire::Word::kNew, [&](uint64_t id) {
    at_owners_.insert(id);
    hold(id, {kEverywhere, step_.storages().at(id).bytes, false, false});
  });
}

void StepSimulation::take_from_owners(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    const auto known = held_.find(id);
    if (known == held_.end() || at_owners_.count(id) == 0) continue;
    bytes_ -= bytes_of(id, known->second);
    at_owners_.erase(id);
    bytes_ += bytes_of(id, known->second);
  }
  cost_.bytes = std::max(cost_.bytes, bytes_);
}

void StepSimulation::begin() {
  held_.clear();
  at_owners_.clear();
  bytes_ = 0;
  for (const auto& [id, found] : step_.storages()) {
    if (!found.was_there) continue;
    const auto rows = placement_->rows.find(id);
    const bool is_planned = rows != placement_->rows.end();
    hold(id, {is_planned ? std::optional(Placement{Sharing::kRows, rows->second, 0}) : kEverywhere, found.bytes, false, is_planned});
  }
  for (const auto& [id, period] : batches_) {
    const auto& found = step_.storages().at(id);
    if (found.was_there || found.is_untouched) hold(id, {placed(id, kEverywhere), found.bytes, false, false});
  }
}

std::optional<Placement> StepSimulation::placed(uint64_t id, const std::optional<Placement>& made) const {
  const auto batch = batches_.find(id);
  const bool is_copies = made && made->sharing == Sharing::kCopies;
  if (batch == batches_.end() || !placement_->batches_in_rows || !is_copies) return made;
  return Placement{Sharing::kRows, batch->second, 0};
}

Held StepSimulation::held(uint64_t id) const {
  const auto known = held_.find(id);
  if (known != held_.end()) return known->second;
  return {std::nullopt, step_.storages().at(id).bytes, /*is_untouched=*/true, false};
}

int64_t StepSimulation::bytes_of(uint64_t id, const Held& held) const {
  const bool is_copy = held.placement && held.placement->sharing == Sharing::kCopies;
  const bool returns = is_copy && (owned_.count(id) != 0 || at_owners_.count(id) != 0 || (returns_rows_ && placement_->rows.count(id) != 0));
  return held.placement && !returns ? held.placement->bytes_of(held.bytes, devices_) : held.bytes / devices_;
}

void StepSimulation::hold(uint64_t id, Held held) {
  leave(id);
  bytes_ += bytes_of(id, held);
  cost_.bytes = std::max(cost_.bytes, bytes_);
  held_[id] = std::move(held);
}

void StepSimulation::leave(uint64_t id) {
  const auto known = held_.find(id);
  if (known == held_.end()) return;
  bytes_ -= bytes_of(id, known->second);
  held_.erase(known);
}

// So many bytes come to each device, and as many leave it.
void StepSimulation::move(double bytes) { cost_.move_s += rates_.link_latency_s + bytes / rates_.link_bytes_per_s; }

bool StepSimulation::is_in_rows(const std::vector<uint64_t>& ids) const {
  return std::any_of(ids.begin(), ids.end(), [&](uint64_t id) { return held(id).period() != 0; });
}

void StepSimulation::merge_for(const std::vector<uint64_t>& ids) {
  const auto is_partial = [&](uint64_t id) {
    const auto known = held_.find(id);
    return known != held_.end() && known->second.placement && known->second.placement->is_partial();
  };
  if (std::none_of(ids.begin(), ids.end(), is_partial)) return;
  double bytes = 0;
  for (auto& [id, held] : held_) {
    const bool is_asked = std::find(ids.begin(), ids.end(), id) != ids.end();
    if (!is_partial(id) || (!is_asked && held.bytes >= kSmallSumBytes)) continue;
    bytes += bytes_of_sum(held.bytes);
    held.placement = kEverywhere;
  }
  move(bytes);
}

void StepSimulation::carry_out(const StepRecord::Call& call) {
  const auto ids = storages_of(*call.plan, call.words);
  for (const uint64_t id : written_of(*call.plan, call.words)) {
    const auto rows = placement_->rows.find(id);
    Held now = held(id);
    if (rows == placement_->rows.end() || now.period() != 0 || !now.placement) continue;
    now.placement = Placement{Sharing::kRows, rows->second, 0};
    hold(id, now);
  }
  merge_for(ids);
  const HeldLookup lookup = [this](uint64_t id) { return held(id); };
  const Way* way = nullptr;
  const Way* turned = nullptr;
  while (is_in_rows(ids)) {
    way = &rules_.way_of(call, lookup);
    if (way->whole || way->is_divided()) break;
    if (!way->copied.empty()) copy_for(call, *way);
    else turn_for(call, *(turned = way));
    way = nullptr;
  }
  if (way == nullptr) {
    const bool has_owners = rules_.has_owners(call);
    cost_.compute_s += rules_.seconds_of(call.number) / static_cast<double>(has_owners ? devices_ : 1);
    if (has_owners) return leave_to_owners(call);
    take_from_owners(ids);
    return place_results(call, Way());
  }
  take_from_owners(ids);
  cost_.compute_s += seconds_of(call, *way);
  if (!way->whole && way->composition) add_up_for(*way->composition);
  place_results(call, *way);
  if (turned != nullptr) turn_back(call, *turned);
  for (const uint64_t id : ids) {  // copies that are not kept
    const auto rows = placement_->rows.find(id);
    Held now = held(id);
    if (!returns_rows_ || rows == placement_->rows.end() || !now.placement || now.placement->sharing != Sharing::kCopies) continue;
    now.placement = Placement{Sharing::kRows, rows->second, 0};
    hold(id, now);
  }
}

double StepSimulation::seconds_of(const StepRecord::Call& call, const Way& way) const {
  if (way.whole || (way.starts.empty() && !way.composition)) return rules_.seconds_of(call.number);
  if (!way.composition) return rules_.seconds_of(way.definition);
  double seconds = 0;
  for (const auto& step : way.composition->steps) seconds += rules_.seconds_of(step.definition);
  return seconds;
}

// Before each step that wants sums, these are made together.
void StepSimulation::add_up_for(const Composition& composition) {
  for (const auto& step : composition.steps) {
    double bytes = 0;
    for (const size_t number : step.sums) bytes += bytes_of_sum(composition.made[number].bytes);
    if (!step.sums.empty()) move(bytes);
  }
}

void StepSimulation::copy_for(const StepRecord::Call& call, const Way& way) {
  std::vector<uint64_t> given;
  for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) { given.push_back(id); });
  int64_t together = 0;
  double bytes = 0;
  for (const size_t tensor : way.copied) {
    Held now = held(given[tensor]);
    if (now.period() == 0) continue;
    bytes += bytes_of_sum(now.bytes);  // of each device's rows, padded (shares.cpp)
    together += now.bytes;
    now.placement = kEverywhere;
    hold(given[tensor], now);
  }
  if (returns_rows_) cost_.bytes = std::max(cost_.bytes, bytes_ + together);
  move(bytes);
}

void StepSimulation::turn_for(const StepRecord::Call& call, const Way& way) {
  std::vector<uint64_t> given;
  for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) { given.push_back(id); });
  turn(given, way.turned);
}

void StepSimulation::turn_back(const StepRecord::Call& call, const Way& way) {
  std::vector<uint64_t> made;
  for_each_storage(*call.plan, call.words, wire::Word::kNew, [&](uint64_t id) { made.push_back(id); });
  turn(made, way.turned_back);
}

// Each device keeps the piece that stays its own.
void StepSimulation::turn(const std::vector<uint64_t>& ids, const std::vector<std::pair<size_t, int64_t>>& turned) {
  for (const auto& [number, period] : turned) {
    Held now = held(ids[number]);
    if (now.period() == 0 || now.period() == period) continue;
    cost_.bytes = std::max(cost_.bytes, bytes_ + RowTurn::kTimesRows * now.bytes / devices_);
    move(static_cast<double>(now.bytes / devices_) * static_cast<double>(devices_ - 1) / static_cast<double>(devices_));
    now.placement->period = period;
    hold(ids[number], now);
  }
}

// Of a whole call, what is in rows comes to one device, and what it makes of the same size goes back to rows.
void StepSimulation::place_whole(const StepRecord::Call& call) {
  double bytes = static_cast<double>(call.plan->new_bytes);
  int64_t gathered = call.plan->new_bytes;
  Held rows;
  for (const uint64_t id : storages_of(*call.plan, call.words)) {
    if (held(id).period() == 0) continue;
    rows = held(id);
    bytes += static_cast<double>(rows.bytes);
    gathered += rows.bytes - bytes_of(id, rows);
  }
  cost_.bytes = std::max(cost_.bytes, bytes_ + gathered);
  move(bytes * static_cast<double>(devices_ - 1) / static_cast<double>(devices_));
  for_each_storage(*call.plan, call.words, wire::Word::kNew, [&](uint64_t id) {
    const int64_t made = step_.storages().at(id).bytes;
    hold(id, {made == rows.bytes ? rows.placement : kEverywhere, made, false, false});
  });
}

void StepSimulation::place_results(const StepRecord::Call& call, const Way& way) {
  if (way.whole) return place_whole(call);
  auto period = way.fresh.begin();
  for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) {
    const int64_t fresh = way.fresh.empty() ? 0 : *period++;
    Held now = held(id);
    const bool is_copy = now.placement && now.placement->sharing == Sharing::kCopies;
    if (fresh == 0 ? !now.is_untouched : !now.is_untouched && !is_copy) return;
    now.placement = fresh == 0 ? kEverywhere : std::optional(Placement{Sharing::kRows, fresh, 0});
    now.is_untouched = false;
    hold(id, now);
  });
  std::vector<std::optional<Placement>> made;
  if (way.composition) {
    made.resize(call.plan->new_storages, kEverywhere);
    for (const auto& one : way.composition->made) {
      if (one.result) made[*one.result] = one.placement;
    }
  }
  for (const auto& one : way.made) made.push_back(one.placement);
  size_t result = 0;
  for_each_storage(*call.plan, call.words, wire::Word::kNew, [&](uint64_t id) {
    const auto placement = result < made.size() ? made[result] : kEverywhere;
    ++result;
    hold(id, {placed(id, placement), step_.storages().at(id).bytes, false, false});
  });
}

}  // namespace forebay::worker
