#include "device/versions.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <forebay/checkpoints.h>

#include "base/memory.h"
#include "device/bulk_copy.h"

namespace forebay::worker {

namespace {

const std::string kFreedOnDisk = "it freed a tensor that lay on a disk";
const std::string kUnread = "a device failed";
const std::string kTooMany = "there were more than " + std::to_string(wire::kCheckpointsMax);

bool shares_memory_with(const Entry& entry, const Preimage& preimage) {
  return preimage.memory() && entry.memory() && entry.memory().unsafeGetStorageImpl() == preimage.memory().unsafeGetStorageImpl();
}

bool is_held(const Entry& entry) { return entry.share() != nullptr || entry.holds_anything(); }

bool was_read(SharedStorages& shared, uint64_t id, const c10::Storage& target) {
  try {
    shared.read(id, target);
    return true;
  } catch (const CommandError&) {
  } catch (const c10::Error&) {
  }
  return false;
}

}  // namespace

const std::string Versions::kForMemory = "memory was short";

void Preimage::hand_over(const Device& device, const Storages::TakeBytes& take) const {
  if (memory_.device().is_cpu()) return take(static_cast<const uint8_t*>(memory_.data()), bytes_);
  BulkCopy copy(device, storages_.staging(), bytes_);
  copy.fetch(memory_, [&take](int64_t, const uint8_t* data, int64_t bytes) { take(data, bytes); });
  copy.finish();
}

VersionedStorage::~VersionedStorage() { versions_.forget(*this); }

void VersionedStorage::before_write() {
  if (!versions_.shared_.are_several()) versions_.before_write(*this, Versions::Write::kPart);
}

void VersionedStorage::before_placed_write() { versions_.before_write(*this, versions_.shared_.are_several() ? Versions::Write::kPlaced : Versions::Write::kPart); }

void VersionedStorage::before_overwrite() {
  if (!versions_.shared_.are_several()) versions_.before_write(*this, Versions::Write::kAll);
}

// Taking.

void Versions::take(uint64_t number, bool is_named) {
  if (number <= newest_) throw wire::WireError("checkpoint " + std::to_string(number) + " after checkpoint " + std::to_string(newest_));
  if (versions_.empty()) follow();
  storages_.for_each([before = newest_, this](uint64_t id, Entry& entry) {
    if (entry.watch() == nullptr && entry.bytes() > 0) entry.watch_by(std::make_unique<VersionedStorage>(*this, id, entry, before));
  });
  if (versions_.size() >= wire::kCheckpointsMax) drop_one(kTooMany);
  newest_ = number;
  versions_[number].is_named = is_named;
}

void Versions::follow() {
  storages_.make_room_by([this](int64_t bytes) { give_up(bytes); });
  reclaim_on_host_by(Reclaim::kVersions, [this](int64_t bytes) { give_up(bytes); });
}

void Versions::take_for_forks(uint64_t number, Snapshot snapshot) {
  last_for_forks_ = number;
  take(number, /*is_named=*/true);
  versions_[number].snapshot = std::make_unique<const Snapshot>(std::move(snapshot));
}

std::vector<uint64_t> Versions::numbers() const {
  std::vector<uint64_t> numbers;
  for (const auto& [number, version] : versions_) {
    if (!version.snapshot) numbers.push_back(number);
  }
  return numbers;
}

// Keeping.

void Versions::before_write(VersionedStorage& storage, Write write) {
  auto preimage = std::exchange(storage.same, nullptr);
  if (storage.kept_in < last() && !preimage) preimage = preimage_of(storage, write);
  if (storage.kept_in < last()) {
    storage.kept_in = last();
    versions_.rbegin()->second.kept.emplace(storage.id, preimage);
  }
  if (preimage && write != Write::kPlaced) part(storage.entry, preimage, write);
}

// What is overwritten gives its memory away, if nobody else uses that; else it is copied, so that the storage stays where it is.
std::shared_ptr<Preimage> Versions::preimage_of(const VersionedStorage& storage, Write write) {
  Entry& entry = storage.entry;
  const auto keep = [&](c10::Storage memory) { return std::make_shared<Preimage>(std::move(memory), entry.bytes(), storages_); };
  if (write == Write::kPlaced ? !is_held(entry) : !entry.memory()) return keep(c10::Storage(nullptr));
  const bool is_whole = write == Write::kAll || write == Write::kReturn;
  if (is_whole) entry.forget_views();
  const bool gives_away = is_whole && entry.memory().use_count() == 1;
  c10::Storage room(nullptr);
  if (!gives_away || write != Write::kReturn) {
    room = allocate(entry.bytes(), [&] { return storage.kept_in < last(); });
    if (!room) return nullptr;
  }
  if (gives_away) {
    auto preimage = keep(entry.memory());
    entry.relocate(std::move(room));
    return preimage;
  }
  if (write != Write::kPlaced) device_.copy(room, 0, entry.memory(), 0, entry.bytes());
  else if (!was_read(shared_, storage.id, room)) drop_all(kUnread);
  return keep(std::move(room));
}

void Versions::part(Entry& entry, const std::shared_ptr<Preimage>& preimage, Write write) {
  if (!shares_memory_with(entry, *preimage) || preimage.use_count() == 1) return;
  c10::Storage own(nullptr);
  if (write != Write::kReturn) {
    own = allocate(entry.bytes(), [&] { return preimage.use_count() > 1; });
    if (!own) return;
  }
  if (write == Write::kPart) device_.copy(own, 0, preimage->memory(), 0, entry.bytes());
  preimage->count(true);
  entry.relocate(std::move(own));
}

c10::Storage Versions::allocate(int64_t bytes, const std::function<bool()>& is_needed) {
  while (are_kept() && is_needed()) {
    if (bytes <= free_bytes()) {
      try {
        c10::Storage memory = shared_.are_several() ? device_.allocate_parked(bytes) : device_.allocate(bytes, /*zeroed=*/false);
        if (is_needed()) return memory;
      } catch (const c10::OutOfMemoryError&) {
      }
    }
    if (!drop_one()) drop_all(kForMemory);
  }
  return c10::Storage(nullptr);
}

void Versions::forget(const VersionedStorage& storage) {
  keep_freed(storage);
  if (storage.kept_in == storage.born) return;
  for (auto& [number, version] : versions_) version.kept.erase(storage.id);
}

// From the last version to the first: each has what the storage held by then, or what the next one has. What is on a disk stays there no longer.
void Versions::keep_freed(const VersionedStorage& storage) {
  std::shared_ptr<Preimage> held;
  std::vector<uint64_t> unkept;
  for (auto version = versions_.rbegin(); version != versions_.rend() && version->first > storage.born; ++version) {
    const auto kept = version->second.kept.find(storage.id);
    if (kept != version->second.kept.end()) held = kept->second;
    if (!version->second.snapshot) continue;
    if (!held && !storage.entry.spilled().empty()) {
      unkept.push_back(version->first);
      continue;
    }
    if (!held) held = storage.same ? storage.same : std::make_shared<Preimage>(storage.entry.memory(), storage.entry.bytes(), storages_);
    held->count(true);
    version->second.freed.emplace(storage.id, held);
  }
  if (!unkept.empty()) refuse_forks(kFreedOnDisk);
  for (const uint64_t number : unkept) discard(number);
}

// Going back.

Versions::Preimages Versions::kept_for(uint64_t number) const {
  Preimages found;
  for (auto version = versions_.find(number); version != versions_.end(); ++version) {
    found.insert(version->second.kept.begin(), version->second.kept.end());
  }
  return found;
}

bool Versions::is_present(uint64_t number) const {
  for (const auto& [id, preimage] : kept_for(number)) {
    const auto& storage = static_cast<const VersionedStorage&>(*storages_.at(id).watch());
    if (storage.born < number && storage.same != preimage) return false;
  }
  return true;
}

Versions::Return Versions::go_back(uint64_t number) {
  if (!has(number)) throw wire::WireError("checkpoint " + std::to_string(number) + " is not there");
  hold(number);
  Return result;
  for (const auto& [id, preimage] : kept_for(number)) {
    Entry& entry = storages_.at(id);
    auto& storage = static_cast<VersionedStorage&>(*entry.watch());
    if (storage.born >= number || storage.same == preimage) continue;
    if (entry.bytes() != preimage->bytes()) {
      ++result.resized;
      continue;
    }
    if (shared_.are_several()) {
      before_write(storage, Write::kPlaced);
      shared_.write(id, preimage->memory());
      storage.same = preimage;
    } else {
      before_write(storage, Write::kReturn);
      put_back(storage, preimage);
    }
    result.changed.push_back(id);
  }
  hold(0);
  return result;
}

void Versions::put_back(VersionedStorage& storage, const std::shared_ptr<Preimage>& preimage) {
  Entry& entry = storage.entry;
  const bool is_here = !preimage->memory() || preimage->memory().device() == device_.where();
  if (is_here) {
    entry.relocate(preimage->memory());
    preimage->count(false);
  } else {
    if (!entry.memory()) make_room(entry.bytes());
    if (!entry.memory()) entry.relocate(device_.allocate(entry.bytes(), /*zeroed=*/false));
    device_.copy(entry.memory(), 0, preimage->memory(), 0, entry.bytes());
  }
  entry.forget_views();
  storage.same = preimage;
}

// Beginning with one.

const Snapshot* Versions::snapshot(uint64_t number) const {
  const auto found = versions_.find(number);
  return found == versions_.end() ? nullptr : found->second.snapshot.get();
}

void Versions::hand_over(uint64_t number, const Storages::TakeBytes& take) {
  const Version& version = versions_.at(number);
  const Preimages kept = kept_for(number);
  for (const auto& item : version.snapshot->items) {
    if (!item.has_bytes || item.bytes == 0) continue;
    const auto freed = version.freed.find(item.id), changed = kept.find(item.id);
    const Preimage* held = freed != version.freed.end() ? freed->second.get() : changed != kept.end() ? changed->second.get() : nullptr;
    held == nullptr ? storages_.hand_over({item}, take) : held->hand_over(device_, take);
  }
}

void Versions::discard(uint64_t number) {
  const auto found = versions_.find(number);
  if (found != versions_.end()) drop(found);
}

// A storage that shared its memory with what was kept has other memory by now.
void Versions::park(int64_t bytes) {
  storages_.for_each([](uint64_t, Entry& entry) {
    auto* storage = static_cast<VersionedStorage*>(entry.watch());
    if (storage == nullptr || !storage->same) return;
    if (storage->same.use_count() == 1) return storage->same.reset();  // no version has it any more
    storage->same->count(!shares_memory_with(entry, *storage->same));
  });
  while (storages_.kept_bytes() > std::max<int64_t>(bytes, 0) && drop_one()) {
  }
  if (device_.is_host()) return;
  for (const auto& [number, version] : versions_) {
    for (const auto& [id, preimage] : version.kept) move_off(preimage);
    for (const auto& [id, preimage] : version.freed) move_off(preimage);
  }
  device_.release_cache();
}

void Versions::move_off(const std::shared_ptr<Preimage>& preimage) {
  if (!preimage->memory() || preimage->memory().device().is_cpu()) return;
  c10::Storage there = device_.allocate_parked(preimage->bytes());
  device_.copy(there, 0, preimage->memory(), 0, preimage->bytes());
  device_.synchronize();
  preimage->relocate(std::move(there));
}

// Dropping.

void Versions::give_up(int64_t bytes) {
  const int64_t least = storages_.kept_bytes() - bytes;
  while (storages_.kept_bytes() > std::max<int64_t>(least, 0) && drop_one()) {
  }
}

void Versions::make_room(int64_t bytes) {
  if (bytes > free_bytes()) give_up(bytes - free_bytes());
}

bool Versions::drop_one(const std::string& why) {
  const auto find = [&](bool is_named) {
    return std::find_if(versions_.begin(), versions_.end(), [&](const auto& one) { return one.second.is_named == is_named && one.first != held_; });
  };
  auto version = find(false);
  if (version == versions_.end()) version = find(true);
  if (version == versions_.end()) return false;
  version->second.snapshot ? refuse_forks(why) : refuse(why);
  drop(version);
  return true;
}

// The version before it needs what it has not kept itself, of storages that it has.
void Versions::drop(Place version) {
  if (version != versions_.begin()) {
    auto& [number, before] = *std::prev(version);
    for (auto& [id, preimage] : version->second.kept) {
      if (static_cast<VersionedStorage&>(*storages_.at(id).watch()).born < number) before.kept.try_emplace(id, std::move(preimage));
    }
  }
  versions_.erase(version);
}

void Versions::drop_all(const std::string& why) {
  for (const auto& [number, version] : versions_) version.snapshot ? refuse_forks(why) : refuse(why);
  versions_.clear();
}

void Versions::end(const std::string& why) {
  if (newest_ == 0) return;
  drop_all(why);
  storages_.for_each([](uint64_t, Entry& entry) { entry.watch_by(nullptr); });
  storages_.make_room_by(nullptr);
  reclaim_on_host_by(Reclaim::kVersions, nullptr);
  newest_ = 0;
}

}  // namespace forebay::worker
