#include "parallel/batches.h"

#include <algorithm>

#include "call/call_storages.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

// Of parts of one storage, as [data[begin:begin + 64] for begin in ...] has them.
bool is_of_one_storage(const Plan& plan, const wire::Words& words) { return plan.tensors > 1 && storages_of(plan, words).size() == 1; }

// The dimension that lies outermost in memory: the first one as it was uploaded, in whatever order a call takes them.
size_t outermost(const Layout& view) {
  return static_cast<size_t>(std::max_element(view.strides.begin(), view.strides.end()) - view.strides.begin());
}

}  // namespace

void Batches::note_upload(uint64_t id) {
  if (uploads_.size() >= kUnusedMax) uploads_.clear();
  uploads_.insert(id);
  if (const auto& came = storages_.at(id).told_end()) ++*came;
}

bool Batches::makes_batch(const Plan& plan, const wire::Words& words) {
  const auto name = base_name(plan);
  return name == "index" || name == "index_select" || ((name == "stack" || name == "cat") && is_of_one_storage(plan, words));
}

void Batches::note_call(const Plan& plan, const wire::Words& words) {
  if (!makes_batch(plan, words)) return;
  for_each_made(plan, words, [&](size_t, uint64_t id) { note_upload(id); });
}

bool Batches::find(uint64_t number, const Plan& plan, const wire::Words& words) {
  if (uploads_.empty()) return false;
  bool divides = false;
  const auto layouts = layouts_of(plan);
  auto layout = layouts.begin();
  for_each_tensor(plan, words, [&](size_t index, uint64_t id) {
    const Layout& view = **layout++;
    Entry& entry = storages_.at(id);
    if (uploads_.erase(id) == 0 || entry.cause()) return;
    const bool is_divided = entry.share() != nullptr && entry.share()->placement.sharing != Sharing::kCopies;
    if (is_divided) return;  // by the rows of its indices
    const StepRecord::Kind kind{number, index, static_cast<uint64_t>(entry.bytes())};
    auto& came = came_.try_emplace(kind, std::make_shared<int64_t>(0)).first->second;
    entry.tell_end(came);
    const int64_t period = period_of_rows(view, static_cast<int64_t>(words[index + 1]), entry.bytes(), devices_);
    step_.note_upload({id, kind, period}, *came);
    if (*came < kCame) return;
    divides = divides || step_.has_rows();
    if (period == 0 || !step_.is_divided(kind)) return;
    periods_.emplace(id, period);
    divides = true;
  });
  return divides;
}

bool Batches::has_any(const Plan& plan, const wire::Words& words) const {
  bool has = false;
  if (!periods_.empty()) for_each_tensor(plan, words, [&](size_t, uint64_t id) { has = has || this->has(id); });
  return has;
}

int64_t Batches::take(uint64_t id) {
  const auto found = periods_.find(id);
  if (found == periods_.end()) return 0;
  const int64_t period = found->second;
  periods_.erase(found);
  return period;
}

void Batches::put(wire::Writer& out) const {
  out.varint(uploads_.size());
  for (const uint64_t id : uploads_) out.varint(id);
  out.varint(periods_.size());
  for (const auto& [id, period] : periods_) {
    out.varint(id);
    out.varint(static_cast<uint64_t>(period));
  }
  std::unordered_map<const int64_t*, std::vector<uint64_t>> counted;
  for (const auto& item : storages_.items()) {
    if (const auto& count = storages_.at(item.id).told_end()) counted[count.get()].push_back(item.id);
  }
  out.varint(came_.size());
  for (const auto& [kind, count] : came_) {
    put_kind(out, kind);
    out.varint(static_cast<uint64_t>(*count));
    out.varint(counted[count.get()].size());
    for (const uint64_t id : counted[count.get()]) out.varint(id);
  }
}

void Batches::get(wire::Reader& in) {
  for (size_t left = in.count(wire::kStoragesMax, "the number of uploads"); left > 0; --left) uploads_.insert(in.varint());
  for (size_t left = in.count(wire::kStoragesMax, "the number of batches"); left > 0; --left) {
    const uint64_t id = in.varint();
    periods_[id] = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "a period"));
  }
  for (size_t left = in.count(wire::kStoragesMax, "the number of kinds"); left > 0; --left) {
    const auto& count = came_.emplace(get_kind(in), std::make_shared<int64_t>(0)).first->second;
    *count = static_cast<int64_t>(in.varint());
    for (size_t storages = in.count(wire::kStoragesMax, "the number of storages"); storages > 0; --storages) storages_.at(in.varint()).tell_end(count);
  }
}

int64_t Batches::period_of_rows(const Layout& view, int64_t offset, int64_t bytes, int64_t devices) {
  if (view.sizes.empty()) return 0;
  const size_t rows = outermost(view);
  if (offset >= std::max<int64_t>(view.strides[rows], 1)) return 0;
  const int64_t period = period_of(geometry_of(view), rows, view.sizes[rows], view.item_bytes);
  const auto local = local_view(geometry_of(view), view.item_bytes, period, devices);
  return period != 0 && local && local->dimension == rows && period == bytes ? period : 0;
}

}  // namespace forebay::worker
