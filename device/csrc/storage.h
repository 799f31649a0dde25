// What a virtual tensor's storage is on this side: an id, a size and a fake address. The bytes are the worker's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>

#include "devices.h"

namespace forebay {

struct StorageHandle {
  uint64_t id;
  uint64_t generation;  // of the session that holds the bytes
  int64_t bytes;
  c10::DeviceIndex device;
  std::atomic<uint64_t> content{0};  // the number in Contents of what was uploaded, while nothing has changed it
};

struct MemoryUse {
  int64_t allocated;
  int64_t peak;
  int64_t allocations;
  int64_t frees;
  int64_t alive;
};

// Memory of a device as this process asked for it, in bytes.
MemoryUse memory_use(c10::DeviceIndex device);
void reset_peak_memory(c10::DeviceIndex device);

// How much of the flavor's bytes the program lets itself have; what it has already stays.
void set_memory_fraction(c10::DeviceIndex device, double fraction, int64_t flavor_bytes);
double memory_fraction(c10::DeviceIndex device);

// Throws OutOfMemoryError for more than any device has: a worker would take it for a broken stream, and not for too much.
void check_storage_bytes(int64_t bytes);

// Throws OutOfMemoryError where so many bytes more do not fit the flavor, as far as a lease has told it; more than a trifle asks for a lease first.
void check_room(c10::DeviceIndex device, int64_t bytes);

// The allocator behind torch.empty(..., device="cuda"): it tells the current device's worker.
c10::Allocator* device_allocator();

// A storage that a recorded operator will make on the device's worker under this id.
c10::Storage adopt_storage(c10::DeviceIndex device, uint64_t id, int64_t bytes);

// Throws where the tensor is not a virtual device's, or its session is lost.
StorageHandle& handle_of(const c10::TensorImpl& tensor);

// The device whose storage begins at or holds a fake address.
c10::DeviceIndex device_at(const void* address);

// Grows or shrinks; the bytes that fit are kept.
void resize_storage(const c10::Storage& storage, int64_t bytes);

}  // namespace forebay
