// What a virtual tensor's storage is on this side: an id, a size and a fake address. The bytes are the worker's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>

namespace forebay {

struct StorageHandle {
  uint64_t id;
  uint64_t generation;  // of the session that holds the bytes
  int64_t bytes;
  std::atomic<uint64_t> content{0};  // the number in Contents of what was uploaded, while nothing has changed it
};

struct MemoryUse {
  int64_t allocated;
  int64_t peak;
  int64_t allocations;
  int64_t frees;
  int64_t alive;
};

// Device memory as this process asked for it, in bytes.
MemoryUse memory_use();
void reset_peak_memory();

// The allocator behind torch.empty(..., device="cuda"): it tells the worker.
c10::Allocator* device_allocator();

// A storage that a recorded operator will make on the worker under this id.
c10::Storage adopt_storage(uint64_t id, int64_t bytes);

// Throws where the tensor is not this device's, or its session is lost.
StorageHandle& handle_of(const c10::TensorImpl& tensor);

// Grows or shrinks; the bytes that fit are kept.
void resize_storage(const c10::Storage& storage, int64_t bytes);

}  // namespace forebay
