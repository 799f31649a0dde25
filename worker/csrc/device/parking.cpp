// A session's storages off the device and back on it: in host memory, and in a file for what has no place there.
#include <malloc.h>

#include <algorithm>
#include <iterator>
#include <system_error>

#include "device/bulk_copy.h"
#include "device/recurrent.h"
#include "device/storage.h"

namespace forebay::worker {

namespace {

constexpr int64_t kPieceBytes = BulkCopy::kPartBytes;  // of a spilled storage

int64_t bytes_of(const std::vector<SpillFile::Place>& pieces) {
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes;
  return bytes;
}

size_t piece_at(int64_t offset) { return static_cast<size_t>(offset / kPieceBytes); }

int64_t bytes_of(const std::vector<Entry*>& entries) {
  int64_t bytes = 0;
  for (const Entry* entry : entries) bytes += entry->bytes();
  return bytes;
}

}  // namespace

int64_t Storages::park(const ParkingSpace& space, const std::string& spill_directory) {
  parked_ = true;
  std::vector<Entry*> entries;
  int64_t host_bytes = 0;
  for (auto& [id, entry] : entries_) {
    if (keeps_beside(entry.memory_)) entry.replace(c10::Storage(nullptr));  // a derivative does without
    if (!entry.memory_) continue;
    entries.push_back(&entry);
    host_bytes += entry.bytes_;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry* one, const Entry* other) { return one->bytes_ > other->bytes_; });
  std::vector<Entry*> spilled;
  int64_t spill_bytes = 0;
  for (Entry* entry : entries) {
    if (host_bytes <= space.host_bytes) break;
    if (entry->bytes_ > space.spill_bytes - spill_bytes) continue;
    spilled.push_back(entry);
    spill_bytes += entry->bytes_;
    host_bytes -= entry->bytes_;
  }
  if (!spilled.empty() && !spill_directory.empty()) spill(spilled, spill_directory);
  if (!device_.is_host()) move_to_host(entries);
  device_.release_cache();
  ::malloc_trim(0);
  return spilled_bytes();
}

int64_t Storages::spilled_bytes() const {
  int64_t bytes = 0;
  for (const auto& [id, entry] : entries_) bytes += bytes_of(entry.spilled_);
  return bytes;
}

// A disk that is full or broken takes no more: the rest stays in memory, which each storage gives up when all of it is written.
void Storages::spill(const std::vector<Entry*>& entries, const std::string& directory) {
  std::vector<std::vector<SpillFile::Place>> places(entries.size());
  size_t given_up = 0;
  const auto give_up_memory = [&] {
    for (; given_up < entries.size() && bytes_of(places[given_up]) == entries[given_up]->bytes_; ++given_up) {
      entries[given_up]->replace(c10::Storage(nullptr));
      entries[given_up]->spilled_ = std::move(places[given_up]);
    }
  };
  try {
    if (!spill_file_) spill_file_.emplace(directory);
    BulkCopy copy(device_, staging_, bytes_of(entries));
    for (size_t index = 0; index < entries.size(); ++index) {
      copy.fetch(entries[index]->memory_, [&, index](int64_t, const uint8_t* data, int64_t bytes) {
        places[index].push_back(spill_file_->write({{data, bytes}}).front());
      });
      give_up_memory();
    }
    copy.finish();
  } catch (const std::system_error&) {
  }
  give_up_memory();
}

// What is copied from is let go when all is copied.
void Storages::move_to_host(const std::vector<Entry*>& entries) {
  std::vector<Entry*> moved;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(moved), [](const Entry* entry) { return entry->memory_ && !entry->memory_.device().is_cpu(); });
  std::vector<c10::Storage> host;
  BulkCopy copy(device_, staging_, bytes_of(moved));
  for (const Entry* entry : moved) {
    host.push_back(device_.allocate_parked(entry->bytes_));
    auto* begin = static_cast<uint8_t*>(host.back().mutable_data());
    copy.fetch(entry->memory_, [begin](int64_t offset, const uint8_t* data, int64_t bytes) { copy_side_by_side(begin + offset, data, bytes); });
  }
  copy.finish();
  for (size_t index = 0; index < moved.size(); ++index) moved[index]->replace(std::move(host[index]));
}

void Storages::restore() {
  std::vector<Entry*> on_host, on_disk;
  for (auto& [id, entry] : entries_) {
    if (entry.memory_) on_host.push_back(&entry);
    if (!entry.spilled_.empty()) on_disk.push_back(&entry);
  }
  std::sort(on_disk.begin(), on_disk.end(),
            [](const Entry* one, const Entry* other) { return one->spilled_.front().offset < other->spilled_.front().offset; });
  if (!device_.is_host()) move_to_device(on_host);
  device_.is_host() ? unspill_to_host(on_disk) : unspill_to_device(on_disk);
  spill_file_.reset();
  parked_ = false;
}

void Storages::move_to_device(const std::vector<Entry*>& entries) {
  std::vector<Entry*> moved;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(moved), [](const Entry* entry) { return entry->memory_.device().is_cpu(); });
  std::vector<c10::Storage> there;
  BulkCopy copy(device_, staging_, bytes_of(moved));
  for (const Entry* entry : moved) {
    there.push_back(device_.allocate(entry->bytes_, /*zeroed=*/false));
    const auto* begin = static_cast<const uint8_t*>(entry->memory_.data());
    copy.store(there.back(), [begin](int64_t offset, uint8_t* data, int64_t bytes) { copy_side_by_side(data, begin + offset, bytes); });
  }
  copy.finish();
  for (size_t index = 0; index < moved.size(); ++index) moved[index]->replace(std::move(there[index]));
}

void Storages::unspill_to_host(const std::vector<Entry*>& entries) {
  std::vector<c10::Storage> memory;
  std::vector<SpillFile::Target> targets;
  for (const Entry* entry : entries) {
    memory.push_back(device_.allocate(entry->bytes_, /*zeroed=*/false));
    auto* next = static_cast<uint8_t*>(memory.back().mutable_data());
    for (const auto& piece : entry->spilled_) {
      targets.push_back({piece, next});
      next += piece.bytes;
    }
  }
  if (spill_file_) spill_file_->read(targets);
  unspilled(entries, memory);
}

void Storages::unspill_to_device(const std::vector<Entry*>& entries) {
  std::vector<c10::Storage> memory;
  BulkCopy copy(device_, staging_, bytes_of(entries));
  for (const Entry* entry : entries) {
    memory.push_back(device_.allocate(entry->bytes_, /*zeroed=*/false));
    copy.store(memory.back(), [this, entry](int64_t offset, uint8_t* data, int64_t) { spill_file_->read({{entry->spilled_.at(piece_at(offset)), data}}); });
  }
  copy.finish();
  unspilled(entries, memory);
}

void Storages::unspilled(const std::vector<Entry*>& entries, std::vector<c10::Storage>& memory) {
  for (size_t index = 0; index < entries.size(); ++index) {
    entries[index]->replace(std::move(memory[index]));
    entries[index]->spilled_.clear();
  }
}

// Images.

std::vector<Storages::Item> Storages::items(bool with_freed) const {
  std::vector<Item> items;
  items.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) {
    if (!with_freed && entry.watch_ && entry.watch_->is_freed()) continue;
    const bool in_memory = entry.memory_ && !keeps_beside(entry.memory_);  // a derivative does without
    items.push_back({id, entry.bytes_, entry.cause_, in_memory || !entry.spilled_.empty()});
  }
  return items;
}

bool Storages::falls_short() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& one) { return static_cast<bool>(one.second.shortfall_); });
}

void Storages::hand_over(const std::vector<Item>& items, const TakeBytes& take) {
  if (!device_.is_host() && !parked_) {
    BulkCopy copy(device_, staging_, used_bytes_);
    for (const auto& item : items) {
      if (item.has_bytes) copy.fetch(at(item.id).memory_, [&take](int64_t, const uint8_t* data, int64_t bytes) { take(data, bytes); });
    }
    return copy.finish();
  }
  std::vector<uint8_t> staging;
  for (const auto& item : items) {
    for (int64_t done = 0; item.has_bytes && done < item.bytes;) {
      int64_t bytes = 0;
      const uint8_t* data = bytes_at(item.id, done, bytes, staging);
      take(data, bytes);
      done += bytes;
    }
  }
}

const uint8_t* Storages::bytes_at(uint64_t id, int64_t offset, int64_t& bytes, std::vector<uint8_t>& staging) {
  const Entry& entry = at(id);
  if (entry.spilled_.empty()) {
    bytes = entry.bytes_ - offset;
    return static_cast<const uint8_t*>(entry.memory_.data()) + offset;
  }
  const auto& piece = entry.spilled_.at(piece_at(offset));
  staging.resize(static_cast<size_t>(kPieceBytes));
  spill_file_->read({{piece, staging.data()}});
  bytes = piece.bytes - offset % kPieceBytes;
  return staging.data() + offset % kPieceBytes;
}

Entry& Storages::admit(const Item& item, bool parked) {
  check_new(item.id);
  check_room(item.bytes);
  c10::Storage memory(nullptr);
  if (item.has_bytes) memory = parked ? device_.allocate_parked(item.bytes) : device_.allocate(item.bytes, /*zeroed=*/false);
  Entry& entry = admit(item, std::move(memory));
  parked_ = parked;
  return entry;
}

Entry& Storages::admit(const Item& item, c10::Storage memory) {
  check_new(item.id);
  check_room(item.bytes);
  Entry& entry = insert(item.id, item.bytes);
  entry.cause_ = item.cause;
  entry.memory_ = std::move(memory);
  return entry;
}

}  // namespace forebay::worker
