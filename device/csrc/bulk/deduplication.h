// What the worker holds of the bytes that were uploaded: a storage stands here from its upload until something may change it.
//
// The recorder asks for it to be forgotten before it records a write. Whoever finds a content records its copy before anybody can.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "base/storage_handle.h"
#include "bulk/content_hash.h"

namespace forebay {

constexpr int64_t kContentBytesMin = 256 << 10;  // smaller uploads are sent faster than they are looked up

class Contents {
 public:
  // An upload into the storage begins; returns the number that the handle carries while its content is known.
  // Whatever was known of the storage is forgotten. 0 where no more can be known.
  // `heard` is the last failure that the program has heard of: what was uploaded before it may not have come about.
  uint64_t begin(StorageHandle& handle, int64_t offset, uint64_t fingerprint, uint64_t heard);
  // All of it has been sent, unless it was forgotten meanwhile.
  void finish(uint64_t number, const ContentDigest& digest);
  // The storage is about to be changed or freed.
  void forget(StorageHandle& handle) {
    if (handle.content.load(std::memory_order_relaxed) != 0) [[unlikely]] drop(handle);
  }
  void clear();
  void forked();

  struct Place {
    uint64_t storage;
    uint64_t generation;
    int64_t offset;
    uint64_t heard;
  };
  // Whether anything of this fingerprint is known, at the cost of a look-up.
  bool may_know(uint64_t fingerprint);
  // Where the worker holds the content: has `copy` record a copy of it into the storage, unless it lies there already. False if there is
  // none, or `copy` could not.
  bool reuse(StorageHandle& target, int64_t offset, uint64_t fingerprint, const ContentDigest& digest, uint64_t heard,
             const std::function<bool(const Place&)>& copy);

 private:
  struct Content {
    Place place;
    uint64_t fingerprint;
    ContentDigest digest;
    bool whole;  // finish() was called
  };
  void drop(StorageHandle& handle);
  uint64_t insert(StorageHandle& handle, Content content);
  void erase(uint64_t number);

  std::mutex mutex_;  // taken before the stream's
  std::unordered_map<uint64_t, Content> contents_;
  std::unordered_multimap<uint64_t, uint64_t> numbers_;  // by fingerprint
  uint64_t next_ = 1;
};

}  // namespace forebay
