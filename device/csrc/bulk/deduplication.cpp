#include "bulk/deduplication.h"

#include <algorithm>
#include <new>

namespace forebay {
namespace {

constexpr size_t kContentsMax = 65536;

}  // namespace

uint64_t Contents::begin(StorageHandle& handle, int64_t offset, uint64_t fingerprint, uint64_t heard) {
  forget(handle);
  const std::lock_guard lock(mutex_);
  return insert(handle, {{handle.id, handle.generation, offset, heard}, fingerprint, {}, false});
}

uint64_t Contents::insert(StorageHandle& handle, Content content) {
  if (contents_.size() >= kContentsMax) return 0;
  const uint64_t number = next_++;
  numbers_.emplace(content.fingerprint, number);
  contents_.emplace(number, std::move(content));
  handle.content.store(number, std::memory_order_relaxed);
  return number;
}

void Contents::finish(uint64_t number, const ContentDigest& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = contents_.find(number);
  if (found == contents_.end()) return;
  found->second.digest = digest;
  found->second.whole = true;
}

void Contents::drop(StorageHandle& handle) {
  const std::lock_guard lock(mutex_);
  erase(handle.content.exchange(0, std::memory_order_relaxed));
}

void Contents::erase(uint64_t number) {
  const auto found = contents_.find(number);
  if (found == contents_.end()) return;
  const auto [first, last] = numbers_.equal_range(found->second.fingerprint);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second != number) continue;
    numbers_.erase(entry);
    break;
  }
  contents_.erase(found);
}

void Contents::clear() {
  const std::lock_guard lock(mutex_);
  contents_.clear();
  numbers_.clear();
}

void Contents::forked() {
  new (&mutex_) std::mutex;
  clear();
}

bool Contents::may_know(uint64_t fingerprint) {
  const std::lock_guard lock(mutex_);
  return numbers_.count(fingerprint) != 0;
}

bool Contents::reuse(StorageHandle& target, int64_t offset, uint64_t fingerprint, const ContentDigest& digest, uint64_t heard,
                     const std::function<bool(const Place&)>& copy) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = numbers_.equal_range(fingerprint);
  const auto fits = [&](const auto& entry) {
    const Content& content = contents_.at(entry.second);
    const bool same_storage = content.place.storage == target.id;
    const bool there = content.whole && content.place.generation == target.generation && content.place.heard == heard;
    return there && content.digest == digest && (!same_storage || content.place.offset == offset);
  };
  const auto found = std::find_if(first, last, fits);
  if (found == last) return false;
  const Place place = contents_.at(found->second).place;
  if (place.storage == target.id) return true;
  if (!copy(place)) return false;
  erase(target.content.exchange(0, std::memory_order_relaxed));
  insert(target, {{target.id, target.generation, offset, heard}, fingerprint, digest, true});
  return true;
}

}  // namespace forebay
