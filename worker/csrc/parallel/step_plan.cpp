#include "parallel/step_plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "call/call_storages.h"
#include "parallel/placement_planner.h"
#include "sharding/local_call.h"

namespace forebay::worker {

namespace {

constexpr std::array<std::string_view, 7> kProducts{"mm", "addmm", "bmm", "baddbmm", "linear", "embedding", "convolution"};  // that weights are given to

}  // namespace

StepPlan::StepPlan(Gang& gang, Storages& storages, const GangWork& work, WayOf way_of)
    : gang_(gang), storages_(storages), work_(work), way_of_(std::move(way_of)) {}

void StepPlan::forget() { record_.forget(); }

bool StepPlan::is_divided(const StepRecord::Kind& kind) const {
  const auto found = kinds_.find(kind);
  return found == kinds_.end() ? divides_ : found->second;
}

void StepPlan::note_upload(const StepRecord::Upload& upload, int64_t came) {
  if (record_.is_on() && record_.kind() == upload.kind && !record_.calls().empty()) choose();
  if (planned_ && upload.kind == planned_kind_) note_step();
  const bool is_new = came == 1 || (kinds_.count(upload.kind) != 0 && !is_used_);
  if (!record_.is_on() && is_new && records_ < kRecordsMax) {
    ++records_;
    record_.begin(upload.kind);
  }
  record_.note_upload(upload);
  is_used_ = false;
}

void StepPlan::note(uint64_t number, const Plan& plan, const wire::Words& words) {
  record_.note(number, plan, words, storages_);
  if (is_used_ || periods_.empty()) return;
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) { is_used_ = is_used_ || periods_.count(id) != 0; });
}

void StepPlan::choose() {
  std::unordered_map<uint64_t, double> seconds;  // by template
  auto& templates = gang_.templates();
  const CallRules rules{way_of_,
                  [&](uint64_t number) {
                    const auto [known, is_new] = seconds.try_emplace(number);
                    if (is_new) known->second = seconds_of(templates.template_of(number), templates.operator_of(number), gang_.rates());
                    return known->second;
                  },
                  [&](const StepRecord::Call& call) { return templates.length_of_items(call.number) > 1; }};
  StepSimulation simulation(record_, static_cast<int64_t>(gang_.size()), gang_.rates(), rules);
  PlacementPlanner planner(record_, gang_, simulation, gang_.memory().part_of(storages_.limit_bytes()), periods_);
  const bool is_new_batch = !periods_.empty() && kinds_.count(record_.kind()) == 0;
  if (!planner.has_choice() && !is_new_batch) return record_.forget();
  const StepPlacement placement = planner.best();
  if (planner.has_choice() || !planned_) {
    planned_ = planner.reported(placement);
    planned_kind_ = record_.kind();
    planned_work_s_ = 0;
    for (const auto& call : record_.calls()) planned_work_s_ += rules.seconds_of(call.number);
    pipeline_.reset();
    times_ = {};
  }
  for (const auto& [id, found] : record_.storages()) {
    const auto rows = placement.rows.find(id);
    if (found.was_there) periods_.try_emplace(id, rows == placement.rows.end() ? 0 : rows->second);
  }
  for (const auto& upload : record_.uploads()) {
    periods_.erase(upload.id);
    kinds_[upload.kind] = placement.batches_in_rows;
  }
  divides_ = placement.batches_in_rows;
  rests_in_rows_ = true;
  has_rows_ = has_rows_ || !placement.rows.empty();
  record_.forget();
}

void StepPlan::put(wire::Writer& out) const {
  out.varint(static_cast<uint64_t>(records_));
  for (const bool is : {is_used_, has_rows_, divides_}) out.u8(is);
  out.varint(periods_.size());
  for (const auto& [id, period] : periods_) {
    out.varint(id);
    out.varint(static_cast<uint64_t>(period));
  }
  out.varint(kinds_.size());
  for (const auto& [kind, is_divided] : kinds_) {
    put_kind(out, kind);
    out.u8(is_divided);
  }
  out.u8(rests_in_rows_);
  if (!planned_) return;
  put_kind(out, planned_kind_);
  out.f64(planned_work_s_);
  wire::put_gang_plan(out, *reported());
}

void StepPlan::get(wire::Reader& in) {
  records_ = static_cast<int64_t>(in.bounded(kRecordsMax, "the number of recorded steps"));
  for (bool* is : {&is_used_, &has_rows_, &divides_}) *is = in.u8() != 0;
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) {
    const uint64_t id = in.varint();
    periods_[id] = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "a period"));
  }
  for (size_t left = in.count(wire::kStoragesMax, "the number of kinds"); left > 0; --left) {
    auto kind = get_kind(in);
    kinds_[std::move(kind)] = in.u8() != 0;
  }
  if (in.done()) return;  // older workers end here
  rests_in_rows_ = in.u8() != 0;
  if (in.done()) return;
  planned_kind_ = get_kind(in);
  planned_work_s_ = in.f64();
  planned_ = wire::get_gang_plan(in);
  pipeline_ = std::exchange(planned_->pipeline, std::nullopt);
}

bool StepPlan::is_large(uint64_t id) const {
  const Entry& entry = storages_.at(id);
  if (entry.bytes() <= gang_.memory().part_of(storages_.limit_bytes()) / kLargeShare) return false;
  return entry.share() == nullptr && !entry.is_untouched() && periods_.count(id) == 0;
}

bool StepPlan::is_given_large(const Plan& plan, const wire::Words& words) const {
  bool is_given = false;
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) { is_given = is_given || is_large(id); });
  return is_given && std::find(kProducts.begin(), kProducts.end(), base_name(plan)) != kProducts.end();
}

// What is not held together yet is taken for copies, as it comes to be.
void StepPlan::divide_large(const StepRecord::Call& call, const HeldLookup& held) {
  if (!is_given_large(*call.plan, call.words)) return;
  const LocalCall local(gang_.templates().template_of(call.number));
  size_t tensor = 0;
  for_each_storage(*call.plan, call.words, wire::Word::kStorage, [&](uint64_t id) {
    const auto& view = local.tensors()[tensor++]->geometry;
    if (!is_large(id)) return;
    auto candidates = row_periods(view, storages_.at(id).bytes(), static_cast<int64_t>(gang_.size()));
    std::stable_sort(candidates.begin(), candidates.end(), std::greater<>());  // the largest has the fewest pieces
    periods_[id] = 0;
    for (const int64_t period : candidates) {
      const Way& way = way_of_(call, [&](uint64_t other) {
        if (other == id || period_of(other) != 0) return Held{Placement{Sharing::kRows, other == id ? period : period_of(other), 0}, storages_.at(other).bytes(), false, false};
        Held now = held(other);
        if (!now.placement && !now.is_untouched) now.placement = Placement{Sharing::kCopies, 0, 0};
        return now;
      });
      if (way.whole || !way.turned.empty()) continue;
      periods_[id] = period;
      has_rows_ = true;
      return;
    }
  });
}

void StepPlan::note_step() {
  const bool was_settled = times_.is_settled();
  times_.begin(work_.worked_ns());
  if (!was_settled) gang_.memory().forget_peaks();
}

void StepPlan::begin_step(bool by_pipeline) {
  if (rests_in_rows_ == by_pipeline) times_ = {};
  rests_in_rows_ = !by_pipeline;
  if (pipeline_) pipeline_->serves = by_pipeline;
  if (!by_pipeline) return;
  record_.forget();  // what comes is no whole step
  note_step();
}

std::optional<StepPlan::Foretold> StepPlan::foretold() const {
  if (!planned_) return std::nullopt;
  const auto chosen = std::find_if(planned_->considered.begin(), planned_->considered.end(), [this](const auto& one) { return one.layout == planned_->layout; });
  if (chosen == planned_->considered.end()) return std::nullopt;
  return Foretold{static_cast<double>(chosen->step_ns) / 1e9, planned_work_s_, chosen->bytes <= planned_->room_bytes};
}

std::optional<wire::GangPlan> StepPlan::reported() const {
  if (!planned_) return std::nullopt;
  auto report = *planned_;
  report.steps = times_.measured();
  report.step_ns = times_.median_ns();
  const auto& peaks = gang_.memory().peaks();
  report.bytes.assign(peaks.begin(), peaks.end());
  report.pipeline = pipeline_;
  return report;
}

}  // namespace forebay::worker
