#include "gang/gang_memory.h"

#include <algorithm>
#include <numeric>

#include <forebay/out_of_memory.h>

namespace forebay::worker {

int64_t GangMemory::part_of(int64_t limit_bytes) const {
  const auto count = static_cast<int64_t>(devices());
  return limit_bytes / count + (limit_bytes % count != 0);
}

int64_t GangMemory::used(int place) const {
  if (place > 0) return others_[static_cast<size_t>(place) - 1]->used_bytes();
  return std::accumulate(others_.begin(), others_.end(), storages_.used_bytes() - storages_.absent_bytes() + copied_bytes_ - hosted_bytes_,
                         [](int64_t left, const auto& other) { return left - other->used_bytes(); });
}

std::vector<int64_t> GangMemory::used() const {
  std::vector<int64_t> bytes;
  for (int place = 0; place < static_cast<int>(devices()); ++place) bytes.push_back(used(place));
  return bytes;
}

void GangMemory::note_peaks() {
  for (size_t place = 0; place < peaks_.size(); ++place) peaks_[place] = std::max(peaks_[place], used(static_cast<int>(place)));
}

void GangMemory::note_peaks(const std::vector<int64_t>& bytes) {
  for (size_t place = 0; place < peaks_.size(); ++place) peaks_[place] = std::max(peaks_[place], bytes[place]);
}

bool GangMemory::all_have_room(int64_t bytes) const {
  for (int place = 0; place < static_cast<int>(devices()); ++place) {
    if (bytes > room(place)) return false;
  }
  return true;
}

void GangMemory::demand_room(const std::vector<int64_t>& bytes) const {
  for (size_t place = 0; place < bytes.size(); ++place) {
    if (!has_room(static_cast<int>(place), bytes[place])) refuse(bytes[place]);
  }
}

int GangMemory::roomiest() const {
  int best = 0;
  for (int place = 1; place < static_cast<int>(devices()); ++place) {
    if (room(place) > room(best)) best = place;
  }
  return best;
}

bool GangMemory::may_lack(int place, const Plan& plan) const { return room(place) / kTemporaries < plan.given_bytes + plan.new_bytes; }

bool GangMemory::any_may_lack(const Plan& plan) const {
  for (int place = 0; place < static_cast<int>(devices()); ++place) {
    if (may_lack(place, plan)) return true;
  }
  return false;
}

// A call is carried out by one device, or by each on its part: so the virtual device's memory may suffice where a device's does not.
std::string GangMemory::fullest() const {
  int place = 0;
  for (int other = 1; other < static_cast<int>(devices()); ++other) {
    if (used(other) > used(place)) place = other;
  }
  return "It consists of " + std::to_string(devices()) + " devices of " + human_bytes(part_of(storages_.limit_bytes())) + ", the fullest of which holds " +
         human_bytes(used(place)) + "; one call runs within one of them";
}

std::string GangMemory::out_of_memory_text(const std::string& told) const {
  constexpr const char* kOurs = " of this virtual device's limit of ";  // which a device takes for its own
  const std::string devices = fullest();
  if (told.find("; one call runs within one of them") != std::string::npos) return told;
  if (told.find(kOurs) == std::string::npos) return told + ". " + devices;
  const std::string ours = out_of_memory(0, storages_.used_bytes() - storages_.absent_bytes(), storages_.limit_bytes());
  return told.substr(0, told.find(": ")) + ours.substr(ours.find(": ")) + ". " + devices;
}

GangMemory::Load GangMemory::load_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const {
  Load load{std::vector<int64_t>(devices(), 0), 0, fresh_bytes, scratch_of(ids, fresh_bytes)};
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (!entry.holds_anything()) continue;
    load.bytes += entry.bytes();
    if (entry.home() != kOnHost) load.there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  return load;
}

int64_t GangMemory::scratch_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const {
  int64_t largest = 0;
  for (const uint64_t id : ids) largest = std::max(largest, storages_.at(id).bytes());
  return std::min(fresh_bytes + largest, part_of(storages_.limit_bytes()) / 3);
}

void GangMemory::refuse(int64_t bytes) const {
  throw CommandError(wire::FailureCode::kOutOfMemory, out_of_memory(bytes, storages_.used_bytes() - storages_.absent_bytes(), storages_.limit_bytes()) + ". " + fullest());
}

}  // namespace forebay::worker
