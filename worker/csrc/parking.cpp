// A session's storages off the device and back on it: in host memory, and in a file for what has no place there.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "storage.h"

namespace forebay::worker {

namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of a spilled storage; as much as passes through host memory at a time

int64_t bytes_of(const std::vector<SpillFile::Place>& pieces) {
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace

int64_t Storages::park(const ParkingSpace& space, const std::string& spill_directory) {
  parked_ = true;
  std::vector<Entry*> entries;
  int64_t host_bytes = 0;
  for (auto& [id, entry] : entries_) {
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

// A disk that is full or broken takes no more: the rest stays in memory.
void Storages::spill(const std::vector<Entry*>& entries, const std::string& directory) {
  try {
    if (!spill_file_) spill_file_.emplace(directory);
    for (Entry* entry : entries) spill(*entry);
  } catch (const std::system_error&) {
  }
}

void Storages::spill(Entry& entry) {
  std::vector<SpillFile::Place> pieces;
  c10::Storage staging(nullptr);
  if (!device_.is_host()) staging = device_.allocate_staging(std::min(entry.bytes_, kPieceBytes));
  for (int64_t done = 0; done < entry.bytes_; done += kPieceBytes) {
    const int64_t bytes = std::min(entry.bytes_ - done, kPieceBytes);
    const uint8_t* data = static_cast<const uint8_t*>(entry.memory_.data()) + done;
    if (!device_.is_host()) {
      device_.copy(staging, 0, entry.memory_, done, bytes);
      device_.synchronize();
      data = static_cast<const uint8_t*>(staging.data());
    }
    pieces.push_back(spill_file_->write({{data, bytes}}).front());
  }
  if (pieces.empty()) return;  // nothing is in it
  entry.replace(c10::Storage(nullptr));
  entry.spilled_ = std::move(pieces);
}

// Copies run side by side; what they copy from is let go when all are done.
void Storages::move_to_host(const std::vector<Entry*>& entries) {
  std::vector<std::pair<Entry*, c10::Storage>> moved;
  for (Entry* entry : entries) {
    if (!entry->memory_ || entry->memory_.device().is_cpu()) continue;
    auto host = device_.allocate_staging(entry->bytes_);
    device_.copy(host, 0, entry->memory_, 0, entry->bytes_);
    moved.emplace_back(entry, std::move(host));
  }
  device_.synchronize();
  for (auto& [entry, host] : moved) entry->replace(std::move(host));
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
  std::vector<std::pair<Entry*, c10::Storage>> moved;
  for (Entry* entry : entries) {
    if (!entry->memory_.device().is_cpu()) continue;
    auto there = device_.allocate(entry->bytes_, /*zeroed=*/false);
    device_.copy(there, 0, entry->memory_, 0, entry->bytes_);
    moved.emplace_back(entry, std::move(there));
  }
  device_.synchronize();
  for (auto& [entry, there] : moved) entry->replace(std::move(there));
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
  for (size_t index = 0; index < entries.size(); ++index) {
    entries[index]->replace(std::move(memory[index]));
    entries[index]->spilled_.clear();
  }
}

// A piece is read while the one before it is copied to the device.
void Storages::unspill_to_device(const std::vector<Entry*>& entries) {
  if (entries.empty()) return;
  std::array<c10::Storage, 2> staging{device_.allocate_staging(kPieceBytes), device_.allocate_staging(kPieceBytes)};
  std::vector<c10::Storage> memory;
  size_t turn = 0;
  for (const Entry* entry : entries) {
    memory.push_back(device_.allocate(entry->bytes_, /*zeroed=*/false));
    int64_t done = 0;
    for (const auto& piece : entry->spilled_) {
      auto& buffer = staging[turn++ % staging.size()];
      spill_file_->read({{piece, static_cast<uint8_t*>(buffer.mutable_data())}});
      device_.synchronize();  // of the copy before, whose buffer is the next to be read into
      device_.copy(memory.back(), done, buffer, 0, piece.bytes);
      done += piece.bytes;
    }
  }
  device_.synchronize();
  for (size_t index = 0; index < entries.size(); ++index) {
    entries[index]->replace(std::move(memory[index]));
    entries[index]->spilled_.clear();
  }
}

// Moving.

std::vector<Storages::Item> Storages::items() const {
  std::vector<Item> items;
  items.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) items.push_back({id, entry.bytes_, entry.cause_, entry.memory_ || !entry.spilled_.empty()});
  return items;
}

const uint8_t* Storages::bytes_at(uint64_t id, int64_t offset, int64_t& bytes, std::vector<uint8_t>& staging) {
  const Entry& entry = at(id);
  if (entry.spilled_.empty()) {
    bytes = entry.bytes_ - offset;
    return static_cast<const uint8_t*>(entry.memory_.data()) + offset;
  }
  const auto& piece = entry.spilled_.at(static_cast<size_t>(offset / kPieceBytes));
  staging.resize(static_cast<size_t>(kPieceBytes));
  spill_file_->read({{piece, staging.data()}});
  bytes = piece.bytes - offset % kPieceBytes;
  return staging.data() + offset % kPieceBytes;
}

Entry& Storages::admit(const Item& item) {
  check_new(item.id);
  check_room(item.bytes);
  Entry& entry = insert(item.id, item.bytes);
  entry.cause_ = item.cause;
  if (item.has_bytes) entry.memory_ = device_.allocate(item.bytes, /*zeroed=*/false);
  return entry;
}

}  // namespace forebay::worker
