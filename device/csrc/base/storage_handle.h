// What a virtual tensor's storage is on this side: an id and a size. The bytes are the worker's.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>

namespace forebay {

struct StorageHandle {
  uint64_t id;
  uint64_t generation;  // of the session that holds the bytes
  int64_t bytes;
  c10::DeviceIndex device;
  std::atomic<uint64_t> content{0};  // the number in Contents of what was uploaded, while nothing has changed it
};

}  // namespace forebay
