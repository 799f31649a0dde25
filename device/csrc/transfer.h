// Bulk data on its way, as the command stream keeps it.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "content_hash.h"

namespace forebay {

// An upload whose turn in the stream comes after what was recorded before it.
struct Upload {
  uint64_t storage;
  int64_t offset;
  const uint8_t* next;
  int64_t left;
  c10::Storage source{nullptr};  // none where the thread that uploads waits
  uint64_t content = 0;          // its number, where the bytes are worth remembering
  int64_t in_frame = 0;          // of `left`, in a frame that has begun
  ContentHash hash{};
  std::vector<uint8_t> before{};  // recorded before it, not yet sent
};

// A piece of a download that nobody waits for: when the worker says so, it is in the slot.
struct Download {
  uint64_t request;
  const uint8_t* slot;
  uint8_t* place;
  int64_t bytes;
  c10::Storage target;
};

}  // namespace forebay
