// Where the storages of a gang lie, and how they get there.
#include <algorithm>
#include <cstring>

#include <forebay/out_of_memory.h>

#include "device/bulk_copy.h"
#include "gang/gang.h"

namespace forebay::worker {

// Room.

void Gang::relieve(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes, int64_t left_bytes) {
  const int64_t wanted = bytes + room(place) - spare_room(place, scratch_bytes);
  if (leave_copies_) leave_copies_([&] { return wanted <= room(place); }, but);
  for (const uint64_t id : movable(place, but)) {
    if (wanted <= room(place)) return;
    const int other = roomiest();
    move(id, other != place && storages_.at(id).bytes() <= room(other) - left_bytes ? other : kOnHost);
  }
  if (leave_rows_) leave_rows_([&] { return bytes <= room(place); }, but);
}

void Gang::empty(int place, const std::vector<uint64_t>& but) {
  const auto never = [] { return false; };
  if (leave_copies_) leave_copies_(never, but);
  if (leave_rows_) leave_rows_(never, but);
  for (const uint64_t id : movable(place, but)) move(id, kOnHost);
}

// The storages but these whose home is a device, the largest first.
std::vector<uint64_t> Gang::movable(int place, const std::vector<uint64_t>& but) {
  std::vector<std::pair<int64_t, uint64_t>> found;
  for (const auto& item : storages_.items()) {
    const Entry& entry = storages_.at(item.id);
    const bool is_there = entry.share() == nullptr && entry.holds_anything() && entry.home() == place;
    if (is_there && !std::binary_search(but.begin(), but.end(), item.id)) found.emplace_back(-item.bytes, item.id);
  }
  std::sort(found.begin(), found.end());
  std::vector<uint64_t> ids;
  for (const auto& [minus, id] : found) ids.push_back(id);
  return ids;
}

void Gang::move(uint64_t id, int place) {
  const bool was_kept = storages_.at(id).is_kept();
  bring(id, place);
  if (was_kept) storages_.at(id).keep();
}

void Gang::make_room(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes) {
  relieve(place, bytes, but, scratch_bytes);
  if (bytes <= room(place)) return;
  const int64_t limit = storages_.limit_bytes();
  throw CommandError(wire::FailureCode::kOutOfMemory, out_of_memory(bytes, storages_.used_bytes(), limit) + ". " + fullest());
}

bool Gang::may_lack(int place, const Plan& plan) const { return room(place) / kTemporaries < plan.given_bytes + plan.new_bytes; }

bool Gang::any_may_lack(const Plan& plan) const {
  for (int place = 0; place < static_cast<int>(size()); ++place) {
    if (may_lack(place, plan)) return true;
  }
  return false;
}

// A call is carried out by one device, or by each on its part: so the virtual device's memory may suffice where a device's does not.
std::string Gang::fullest() const {
  int place = 0;
  for (int other = 1; other < static_cast<int>(size()); ++other) {
    if (used(other) > used(place)) place = other;
  }
  return "It consists of " + std::to_string(size()) + " devices of " + human_bytes(part_of(storages_.limit_bytes())) + ", the fullest of which holds " +
         human_bytes(used(place)) + "; one call runs within one of them";
}

std::string Gang::out_of_memory_text(const std::string& told) const {
  constexpr const char* kOurs = " of this virtual device's limit of ";  // which a device takes for its own
  const std::string devices = fullest();
  if (told.find("; one call runs within one of them") != std::string::npos) return told;
  if (told.find(kOurs) == std::string::npos) return told + ". " + devices;
  const std::string ours = out_of_memory(0, storages_.used_bytes(), storages_.limit_bytes());
  return told.substr(0, told.find(": ")) + ours.substr(ours.find(": ")) + ". " + devices;
}

// Homes.

void Gang::demand(Rank& other) {
  if (const auto failure = other.settle()) throw CommandError(failure->code, failure->message);
}

void Gang::give_home(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.holds_anything()) return;
  auto used = this->used();
  used.front() -= entry.bytes();  // as it was counted so far
  bring(id, home_with_room(entry.bytes(), used));
}

// As home_for; the host where no device has room, and in turn with the devices where they take turns.
int Gang::home_with_room(int64_t bytes, const std::vector<int64_t>& used) {
  if (homes_ == Homes::kScatter && ++hosted_turn_ % (size() + 1) == 0) return kOnHost;
  const int home = home_for(bytes, used);
  return used[static_cast<size_t>(home)] + bytes <= part_of(storages_.limit_bytes()) ? home : kOnHost;
}

void Gang::gather(const std::vector<uint64_t>& ids, int place) {
  for (const uint64_t id : ids) bring(id, place);
}

void Gang::bring(uint64_t id, int place) {
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

void Gang::bring_to_host(uint64_t id) {
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
  entry.live_on_host(std::make_unique<HostMemory>(std::move(memory), 0, hosted_bytes_));
}

void Gang::keep_on_host(uint64_t id, c10::Storage memory, int64_t period) {
  storages_.at(id).live_on_host(std::make_unique<HostMemory>(std::move(memory), period, hosted_bytes_));
}

// Bytes.

void Gang::read(uint64_t id, const Entry& entry, int64_t offset, int64_t bytes, uint8_t* target) {
  if (entry.home() != kOnHost) return rank(entry.home()).read({{id, offset, bytes, target}});
  if (bytes > 0) std::memcpy(target, entry.on_host()->data() + offset, static_cast<size_t>(bytes));
}

void Gang::write(uint64_t id, const Entry& entry, int64_t offset, const uint8_t* data, int64_t bytes) {
  if (entry.home() == kOnHost) {
    if (bytes > 0) std::memcpy(entry.on_host()->data() + offset, data, static_cast<size_t>(bytes));
    return;
  }
  Rank& other = rank(entry.home());
  other.write(id, offset, data, bytes);
  demand(other);
}

void Gang::copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes) {
  Rank& other = rank(storages_.at(target).home());
  other.copy(target, target_offset, source, source_offset, bytes);
  demand(other);
}

void Gang::fetch_all() {
  for (const auto& item : storages_.items()) {
    Entry& entry = storages_.at(item.id);
    if (entry.home() == 0) continue;
    auto memory = device_.allocate_parked(item.bytes);
    read(item.id, entry, 0, item.bytes, static_cast<uint8_t*>(memory.mutable_data()));
    entry.replace(std::move(memory));
  }
  flush();
}

void Gang::spread() {
  std::vector<uint64_t> ids;
  for (const auto& item : storages_.items()) {
    if (item.has_bytes) ids.push_back(item.id);
  }
  std::sort(ids.begin(), ids.end());
  std::vector<int64_t> filled(size(), 0);
  for (const uint64_t id : ids) {
    Entry& entry = storages_.at(id);
    const int place = home_with_room(entry.bytes(), filled);
    if (place != kOnHost) filled[static_cast<size_t>(place)] += entry.bytes();
    if (place == kOnHost) {
      auto memory = device_.allocate_parked(entry.bytes());
      auto* data = static_cast<uint8_t*>(memory.mutable_data());
      for_each_piece(id, [&](int64_t offset, const uint8_t* piece, int64_t bytes) { std::memcpy(data + offset, piece, static_cast<size_t>(bytes)); });
      keep_on_host(id, std::move(memory), 0);
    } else if (place != 0) {
      Rank& target = rank(place);
      auto there = std::make_unique<RankMemory>(target, id, entry.bytes(), /*made=*/false);
      for_each_piece(id, [&](int64_t offset, const uint8_t* piece, int64_t bytes) { target.write(id, offset, piece, bytes); });
      demand(target);
      entry.live_elsewhere(std::move(there));
    }
  }
}

void Gang::for_each_piece(uint64_t id, const BulkCopy::Take& take) {
  std::vector<uint8_t> staging;
  const int64_t all = storages_.at(id).bytes();
  for (int64_t done = 0; done < all;) {
    int64_t bytes = 0;
    const uint8_t* data = storages_.bytes_at(id, done, bytes, staging);
    take(done, data, bytes);
    done += bytes;
  }
}

}  // namespace forebay::worker
