#include "gang/homes.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "device/bulk_copy.h"

namespace forebay::worker {

namespace {

constexpr int kLevels = 4;  // of each device's memory

}  // namespace

void GangHomes::relieve(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes, int64_t left_bytes) {
  const int64_t wanted = bytes + memory_.room(place) - memory_.spare_room(place, scratch_bytes);
  if (leave_copies_) leave_copies_([&] { return wanted <= memory_.room(place); }, but);
  for (const uint64_t id : movable(place, but)) {
    if (wanted <= memory_.room(place)) return;
    const int other = memory_.roomiest();
    move(id, other != place && storages_.at(id).bytes() <= memory_.room(other) - left_bytes ? other : kOnHost);
  }
  if (leave_rows_) leave_rows_([&] { return bytes <= memory_.room(place); }, but);
}

void GangHomes::empty(int place, const std::vector<uint64_t>& but) {
  const auto never = [] { return false; };
  if (leave_copies_) leave_copies_(never, but);
  if (leave_rows_) leave_rows_(never, but);
  for (const uint64_t id : movable(place, but)) move(id, kOnHost);
}

// The storages but these whose home is a device, the largest first.
std::vector<uint64_t> GangHomes::movable(int place, const std::vector<uint64_t>& but) {
  std::vector<std::pair<int64_t, uint64_t>> found;
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    const Entry& entry = storages_.at(item.id);
    const bool is_there = entry.share() == nullptr && entry.holds_anything() && entry.home() == place;
    if (is_there && !std::binary_search(but.begin(), but.end(), item.id)) found.emplace_back(-item.bytes, item.id);
  }
  std::sort(found.begin(), found.end());
  std::vector<uint64_t> ids;
  for (const auto& [minus, id] : found) ids.push_back(id);
  return ids;
}

void GangHomes::move(uint64_t id, int place) {
  const bool was_kept = storages_.at(id).is_kept();
  bring(id, place);
  if (was_kept) storages_.at(id).keep();
}

void GangHomes::make_room(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes) {
  relieve(place, bytes, but, scratch_bytes);
  if (!memory_.has_room(place, bytes)) memory_.refuse(bytes);
}

// `used`: bytes at each device.
int GangHomes::home_for(int64_t bytes, const std::vector<int64_t>& used) {
  const int count = static_cast<int>(memory_.devices());
  if (policy_ == Homes::kScatter) return turn_++ % count;
  const int64_t part = memory_.part_of(storages_.limit_bytes());
  for (int level = 1; level <= kLevels; ++level) {
    for (int place = 0; place < count; ++place) {
      if (used[static_cast<size_t>(place)] <= part / kLevels * level - bytes) return place;
    }
  }
  return static_cast<int>(std::min_element(used.begin(), used.end()) - used.begin());
}

// As home_for; the host where no device has room, and in turn with the devices where they take turns.
int GangHomes::home_with_room(int64_t bytes, const std::vector<int64_t>& used) {
  if (policy_ == Homes::kScatter && ++hosted_turn_ % (memory_.devices() + 1) == 0) return kOnHost;
  const int home = home_for(bytes, used);
  return used[static_cast<size_t>(home)] + bytes <= memory_.part_of(storages_.limit_bytes()) ? home : kOnHost;
}

void GangHomes::give_home(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.holds_anything()) return;
  auto used = memory_.used();
  used.front() -= entry.bytes();  // as it was counted so far
  bring(id, home_with_room(entry.bytes(), used));
}

int GangHomes::best_place(const GangMemory::Load& load) {
  const auto most = std::max_element(load.there.begin(), load.there.end());
  if (policy_ == Homes::kScatter || *most == 0) return home_for(load.fresh_bytes, memory_.used());
  return static_cast<int>(most - load.there.begin());
}

std::optional<int> GangHomes::place_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const GangMemory::Load load = memory_.load_of(ids, fresh_bytes);
  const int best = best_place(load);
  if (load.needed(best) <= memory_.spare_room(best, load.scratch_bytes)) return best;
  std::optional<int> next;
  for (int place = 0; place < static_cast<int>(memory_.devices()); ++place) {
    if (load.needed(place) <= memory_.spare_room(place, load.scratch_bytes) && (!next || load.needed(place) < load.needed(*next))) next = place;
  }
  return next;
}

int GangHomes::clear_place(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const int best = best_place(memory_.load_of(ids, fresh_bytes));
  clear(best, ids, fresh_bytes);
  return best;
}

void GangHomes::clear(int place, const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const GangMemory::Load load = memory_.load_of(ids, fresh_bytes);
  make_room(place, load.needed(place), ids, load.scratch_bytes);
}

bool GangHomes::is_gathered(const std::vector<uint64_t>& ids, int place) const {
  return std::all_of(ids.begin(), ids.end(), [&](uint64_t id) {
    const Entry& entry = storages_.at(id);
    return !entry.holds_anything() || entry.home() == place;
  });
}

// The items of lists, put together by where most bytes of each lie; no more together than a device has room for at any time.
// `bytes`: of each item at each device.
std::vector<std::vector<size_t>> GangHomes::divided(const std::vector<std::vector<int64_t>>& bytes) const {
  const int64_t most = memory_.part_of(storages_.limit_bytes()) / kLevels;
  std::vector<std::vector<size_t>> lists;
  for (size_t place = 0; place < memory_.devices(); ++place) {
    int64_t together = most + 1;  // a list begins
    for (size_t item = 0; item < bytes.size(); ++item) {
      const auto& there = bytes[item];
      if (std::max_element(there.begin(), there.end()) - there.begin() != static_cast<std::ptrdiff_t>(place)) continue;
      const int64_t size = std::accumulate(there.begin(), there.end(), int64_t{0});
      if (together + size > most) {
        lists.emplace_back();
        together = 0;
      }
      lists.back().push_back(item);
      together += size;
    }
  }
  return lists;
}

void GangHomes::gather(const std::vector<uint64_t>& ids, int place) {
  for (const uint64_t id : ids) bring(id, place);
}

void GangHomes::bring(uint64_t id, int place) {
  Entry& entry = storages_.at(id);
  if (entry.cause() || entry.home() == place) return;
  if (place == kOnHost) return bring_to_host(id);
  if (!entry.holds_anything()) return entry.live_elsewhere(std::make_unique<RankMemory>(rank(place), id, entry.bytes(), /*made=*/false));
  if (place == 0) {
    auto memory = device_.allocate(entry.bytes(), /*zeroed=*/false);
    BulkCopy copy(device_, storages_.staging(), entry.bytes());
    copy.store(memory, [&](int64_t offset, uint8_t* data, int64_t bytes) { read(id, entry, offset, bytes, data); });
    copy.finish();
    return entry.replace(std::move(memory));
  }
  Rank& target = rank(place);
  auto there = std::make_unique<RankMemory>(target, id, entry.bytes(), /*made=*/false);
  if (entry.home() == kOnHost) {
    target.write(id, 0, entry.on_host()->data(), entry.bytes());
  } else if (entry.home() != 0) {
    std::vector<uint8_t> piece(static_cast<size_t>(std::min<int64_t>(entry.bytes(), BulkCopy::kPartBytes)));
    for (int64_t done = 0; done < entry.bytes();) {
      const auto bytes = std::min<int64_t>(entry.bytes() - done, BulkCopy::kPartBytes);
      read(id, entry, done, bytes, piece.data());
      target.write(id, done, piece.data(), bytes);
      done += bytes;
    }
  } else {
    BulkCopy copy(device_, storages_.staging(), entry.bytes());
    copy.fetch(entry.memory(), [&](int64_t offset, const uint8_t* data, int64_t bytes) { target.write(id, offset, data, bytes); });
    copy.finish();
  }
  demand(target);  // before what it is copied from goes
  entry.live_elsewhere(std::move(there));
}

void GangHomes::bring_to_host(uint64_t id) {
  Entry& entry = storages_.at(id);
  auto memory = device_.allocate_parked(entry.bytes());
  auto* data = static_cast<uint8_t*>(memory.mutable_data());
  if (!entry.holds_anything()) {
    std::fill_n(data, entry.bytes(), uint8_t{0});
  } else if (entry.home() != 0) {
    read(id, entry, 0, entry.bytes(), data);
  } else {
    BulkCopy copy(device_, storages_.staging(), entry.bytes());
    copy.fetch(entry.memory(), [&](int64_t offset, const uint8_t* bytes, int64_t size) { std::memcpy(data + offset, bytes, static_cast<size_t>(size)); });
    copy.finish();
  }
  entry.live_on_host(std::make_unique<HostMemory>(std::move(memory), 0, memory_.hosted_bytes()));
}

void GangHomes::keep_on_host(uint64_t id, c10::Storage memory, int64_t period) {
  storages_.at(id).live_on_host(std::make_unique<HostMemory>(std::move(memory), period, memory_.hosted_bytes()));
}

void GangHomes::read(uint64_t id, const Entry& entry, int64_t offset, int64_t bytes, uint8_t* target) {
  if (entry.home() != kOnHost) return rank(entry.home()).read({{id, offset, bytes, target}});
  if (bytes > 0) std::memcpy(target, entry.on_host()->data() + offset, static_cast<size_t>(bytes));
}

void GangHomes::write(uint64_t id, const Entry& entry, int64_t offset, const uint8_t* data, int64_t bytes) {
  if (entry.home() == kOnHost) {
    if (bytes > 0) std::memcpy(entry.on_host()->data() + offset, data, static_cast<size_t>(bytes));
    return;
  }
  Rank& other = rank(entry.home());
  other.write(id, offset, data, bytes);
  demand(other);
}

void GangHomes::copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes) {
  Rank& other = rank(storages_.at(target).home());
  other.copy(target, target_offset, source, source_offset, bytes);
  demand(other);
}

void GangHomes::fetch_all() {
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    Entry& entry = storages_.at(item.id);
    if (entry.home() == 0) continue;
    auto memory = device_.allocate_parked(item.bytes);
    read(item.id, entry, 0, item.bytes, static_cast<uint8_t*>(memory.mutable_data()));
    entry.replace(std::move(memory));
  }
  for (const auto& other : others_) other->flush();
}

void GangHomes::spread() {
  std::vector<uint64_t> ids;
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    if (item.has_bytes) ids.push_back(item.id);
  }
  std::sort(ids.begin(), ids.end());
  std::vector<int64_t> filled(memory_.devices(), 0);
  for (const uint64_t id : ids) {
    Entry& entry = storages_.at(id);
    const int place = home_with_room(entry.bytes(), filled);
    if (place != kOnHost) filled[static_cast<size_t>(place)] += entry.bytes();
    if (place == kOnHost) keep_on_host(id, on_host(id), 0);
    else if (place != 0) send_away(id, place);
  }
}

c10::Storage GangHomes::on_host(uint64_t id) {
  const Entry& entry = storages_.at(id);
  if (entry.memory() && entry.memory().device().is_cpu()) return entry.memory();
  auto memory = device_.allocate_parked(entry.bytes());
  auto* data = static_cast<uint8_t*>(memory.mutable_data());
  for_each_piece(id, [&](int64_t offset, const uint8_t* piece, int64_t bytes) { std::memcpy(data + offset, piece, static_cast<size_t>(bytes)); });
  return memory;
}

void GangHomes::send_away(uint64_t id, int place) {
  Entry& entry = storages_.at(id);
  Rank& target = rank(place);
  auto there = std::make_unique<RankMemory>(target, id, entry.bytes(), /*made=*/false);
  for_each_piece(id, [&](int64_t offset, const uint8_t* piece, int64_t bytes) { target.write(id, offset, piece, bytes); });
  demand(target);
  entry.live_elsewhere(std::move(there));
}

void GangHomes::for_each_piece(uint64_t id, const BulkCopy::Take& take) {
  std::vector<uint8_t> staging;
  const int64_t all = storages_.at(id).bytes();
  for (int64_t done = 0; done < all;) {
    int64_t bytes = 0;
    const uint8_t* data = storages_.bytes_at(id, done, bytes, staging);
    take(done, data, bytes);
    done += bytes;
  }
}

void GangHomes::demand(Rank& other) {
  if (const auto failure = other.settle()) throw CommandError(failure->code, failure->message);
}

}  // namespace forebay::worker
