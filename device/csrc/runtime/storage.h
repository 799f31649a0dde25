// Storages of virtual tensors: a handle behind a fake address.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "base/devices.h"
#include "base/storage_handle.h"

namespace forebay {

// Throws OutOfMemoryError for more than any device has: a worker would take it for a broken stream, and not for too much.
void check_storage_bytes(int64_t bytes);

// Throws OutOfMemoryError if that many bytes more do not fit the flavor, as far as a lease has told it. A large request takes a lease first.
void check_room(c10::DeviceIndex device, int64_t bytes);

// The allocator behind torch.empty(..., device="cuda"): it tells the current device's worker.
c10::Allocator* device_allocator();

// A storage that a recorded operator will make on the device's worker under this id.
c10::Storage adopt_storage(c10::DeviceIndex device, uint64_t id, int64_t bytes);

// Throw where the tensor, or the storage, is not a virtual device's, or its session is lost.
StorageHandle& handle_of(const c10::TensorImpl& tensor);
StorageHandle& handle_of(const c10::Storage& storage);

// The device whose storage begins at or holds a fake address.
c10::DeviceIndex device_at(const void* address);

// Grows or shrinks; the bytes that fit are kept.
void resize_storage(const c10::Storage& storage, int64_t bytes);

}  // namespace forebay
