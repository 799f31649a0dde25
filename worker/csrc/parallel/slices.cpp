#include "parallel/slices.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "call/call_storages.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

// Operators whose rows come second: after what is added, or after the table.
constexpr std::array<std::string_view, 8> kSecond{"addmm", "addmv", "baddbmm", "addbmm", "_addmm_activation", "embedding", "_embedding_bag", "index_select"};

// The storage of the first result, be it new or given for that.
std::optional<uint64_t> first_made(const Plan& plan, const wire::Words& words, const std::vector<bool>& writes) {
  std::optional<uint64_t> made;
  for_each_made(plan, words, [&](size_t number, uint64_t id) {
    if (number == 0) made = id;
  });
  size_t tensor = 0;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    if (!made && writes[tensor]) made = id;
    ++tensor;
  });
  return made;
}

}  // namespace

size_t Slices::number_of_rows(const Plan& plan) { return std::find(kSecond.begin(), kSecond.end(), base_name(plan)) == kSecond.end() ? 0 : 1; }

bool Slices::is_part(const Entry& data, const Layout& view) {
  const int64_t bytes = view.span_bytes();
  return bytes >= kBytesMin && 2 * bytes <= data.bytes() && view.span == view.numel && !data.cause();
}

std::unique_ptr<Slices::Taken> Slices::take(uint64_t number, const Plan& plan, const wire::Words& words) {
  note_written(plan, words);
  if (!plan.sparse.empty() || gang_.templates().length_of_items(number) > 1) return nullptr;
  const auto writes = writes_of(plan);
  const auto made = first_made(plan, words, writes);
  if (!made) return nullptr;
  const auto layouts = layouts_of(plan);
  const size_t rows = number_of_rows(plan);
  std::map<std::pair<uint64_t, int64_t>, std::pair<Range, std::vector<size_t>>> slices;
  size_t tensor = 0, read = 0;
  for_each_tensor(plan, words, [&](size_t place, uint64_t id) {
    const Layout& view = *layouts[tensor];
    if (writes[tensor++]) return;
    const bool is_rows = read++ == rows;
    if (!is_slice(storages_.at(id), view)) return;
    const Range range{static_cast<int64_t>(words[place + 1]) * view.item_bytes, view.span_bytes()};
    if (is_rows && moves({id, number}, words[place + 1], *made)) current_[id] = range;
    const auto current = current_.find(id);
    if (current == current_.end() || !(current->second == range)) return;
    slices.try_emplace({id, range.begin}, range, std::vector<size_t>()).first->second.second.push_back(place);
  });
  if (slices.empty()) return nullptr;
  auto taken = std::make_unique<Taken>(storages_, words);
  try {
    for (const auto& [source, slice] : slices) copy(source.first, slice.first, slice.second, *taken);
  } catch (const c10::Error&) {  // no room: the call may do without
    return nullptr;
  }
  for (const uint64_t id : taken->ids) batches_.note_upload(id);
  return taken;
}

void Slices::copy(uint64_t source, const Range& range, const std::vector<size_t>& places, Taken& taken) {
  const uint64_t id = new_id();
  Entry& slice = storages_.insert(id, range.bytes);
  taken.ids.push_back(id);
  device_.copy(slice.touch_unwritten(device_), 0, storages_.at(source).read(device_), range.begin, range.bytes);
  for (const size_t place : places) {
    taken.words[place] = id;
    taken.words[place + 1] = 0;
  }
}

bool Slices::is_slice(const Entry& data, const Layout& view) const {
  const int64_t bytes = view.span_bytes();
  if (!is_part(data, view)) return false;
  if (data.told_end() && *data.told_end() != 0) return false;
  if (!gang_.memory().has_room(0, kRoomShare * bytes)) return false;
  return data.share() != nullptr ? data.share()->placement.sharing == Sharing::kCopies : data.home() == 0 && data.memory();
}

bool Slices::moves(const Use& use, uint64_t offset, uint64_t made) {
  if (seen_.size() >= kSeenMax) {
    std::erase_if(seen_, [&](const auto& one) { return !storages_.has(one.first[0]); });
    std::erase_if(current_, [&](const auto& one) { return !storages_.has(one.first); });
    if (seen_.size() >= kSeenMax) seen_.clear();
  }
  const auto [found, is_new] = seen_.try_emplace(use, Seen{offset, made});
  Seen& seen = found->second;
  if (is_new) return false;
  seen.moves = seen.moves || (seen.offset != offset && !storages_.is_alive(seen.made));
  seen.offset = offset;
  seen.made = made;
  return seen.moves;
}

// Data that the program writes to is none whose slices are batches: weights or states that lie in one storage, say.
void Slices::note_written(const Plan& plan, const wire::Words& words) {
  if (seen_.empty() || plan.mutated.empty()) return;
  for (const uint64_t id : written_of(plan, words)) {
    current_.erase(id);
    seen_.erase(seen_.lower_bound({id, 0}), seen_.upper_bound({id, std::numeric_limits<uint64_t>::max()}));
  }
}

uint64_t Slices::new_id() {
  do --last_id_;
  while (storages_.has(last_id_));
  return last_id_;
}

void Slices::put(wire::Writer& out) const {
  out.varint(seen_.size());
  for (const auto& [use, seen] : seen_) {
    for (const uint64_t number : {use[0], use[1], seen.offset, seen.made}) out.varint(number);
    out.u8(seen.moves);
  }
  out.varint(current_.size());
  for (const auto& [id, range] : current_) {
    out.varint(id);
    out.varint(static_cast<uint64_t>(range.begin));
    out.varint(static_cast<uint64_t>(range.bytes));
  }
}

void Slices::get(wire::Reader& in) {
  for (size_t left = in.count(kSeenMax, "the number of slices"); left > 0; --left) {
    const Use use{in.varint(), in.varint()};
    Seen seen{in.varint(), in.varint()};
    seen.moves = in.u8() != 0;
    seen_.emplace(use, seen);
  }
  for (size_t left = in.count(kSeenMax, "the number of storages"); left > 0; --left) {
    const uint64_t id = in.varint();
    const auto begin = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "an offset"));
    current_[id] = {begin, static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the bytes of a slice"))};
  }
}

}  // namespace forebay::worker
