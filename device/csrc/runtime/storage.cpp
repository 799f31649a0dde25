#include "runtime/storage.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory.h"
#include "base/settings.h"
#include "forebay/out_of_memory.h"
#include "stream/stream.h"

namespace forebay {
namespace {

constexpr int kDeviceShift = 56;                        // of a fake address: above it stands its device
constexpr uintptr_t kAddressBase = uintptr_t{1} << 47;  // outside what a process is given, so a stray access faults
constexpr uintptr_t kAlignment = 512;
constexpr int64_t kTrifleBytes = 256 << 20;  // may be allocated before anybody knows how much there is

std::array<std::atomic<uintptr_t>, kDevicesMax> next_addresses;  // above kAddressBase

void* fake_address(c10::DeviceIndex device, int64_t bytes) {
  const auto span = (static_cast<uintptr_t>(bytes) / kAlignment + 1) * kAlignment;
  const auto address = kAddressBase + next_addresses[static_cast<size_t>(device)].fetch_add(span, std::memory_order_relaxed);
  return reinterpret_cast<void*>(address | static_cast<uintptr_t>(device) << kDeviceShift);
}

// The commands about storages.

void append_allocation(CommandStream& stream, uint64_t id, int64_t bytes) {
  static const std::vector<wire::Word> kinds{wire::Word::kNew};
  auto& commands = stream.commands();
  const std::lock_guard lock(commands.mutex());
  const uint64_t key = wire::allocation_key(static_cast<uint64_t>(bytes));
  if (stream.lease().is_open()) {
    commands.tracer().step(key, {id}, kinds);
  } else {
    commands.tracer().step_in_full(key, {id}, kinds);  // a worker has what is expected wait for a lease
  }
  if (bytes > 0) commands.set_unsettled(true);  // it may be too much
  commands.appended();
}

void append_resize(CommandStream& stream, const StorageHandle& handle, int64_t bytes) {
  const auto lock = stream.lock_for(handle.generation);
  auto& commands = stream.commands();
  commands.tracer().say_frees();
  auto& out = commands.cut();
  out.command(wire::Command::kResize);
  out.varint(handle.id);
  out.varint(static_cast<uint64_t>(bytes));
  commands.appended();
}

// Runs wherever Python drops a tensor, often with the GIL: it must not wait, so it never sends.
void append_free(CommandStream& stream, const StorageHandle& handle) {
  if (stream.session().forked || handle.generation != stream.generation()) return;
  auto& commands = stream.commands();
  const std::lock_guard lock(commands.mutex());
  commands.tracer().free(handle.id);
  commands.appended();
}

// An empty storage that grows is a new one, under a new number: that is a step like others, where a RESIZE would end the segment.
void renew(CommandStream& stream, StorageHandle& handle, int64_t bytes) {
  { const auto lock = stream.lock_for(handle.generation); }  // throws if it is lost
  append_free(stream, handle);
  handle.id = stream.new_storages(1);
  append_allocation(stream, handle.id, bytes);
}

void free_handle(void* context) {
  const std::unique_ptr<StorageHandle> handle(static_cast<StorageHandle*>(context));
  count_free(handle->device, handle->bytes);
  auto& stream = CommandStream::of(handle->device);
  stream.contents().forget(*handle);
  append_free(stream, *handle);
}

c10::DataPtr make_data(c10::DeviceIndex device, uint64_t id, int64_t bytes) {
  auto handle = std::unique_ptr<StorageHandle>(new StorageHandle{id, CommandStream::of(device).generation(), bytes, device});
  count_allocation(device, bytes);
  return {fake_address(device, bytes), handle.release(), &free_handle, c10::Device(c10::kCUDA, device)};
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    check_storage_bytes(static_cast<int64_t>(bytes));
    const c10::DeviceIndex device = current_device();
    check_room(device, static_cast<int64_t>(bytes));
    auto& stream = CommandStream::of(device);
    const uint64_t id = stream.new_storages(1);
    auto data = make_data(device, id, static_cast<int64_t>(bytes));
    append_allocation(stream, id, static_cast<int64_t>(bytes));
    return data;
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the bytes of a virtual device's storage cannot be copied by address; copy the tensor");
  }
};

}  // namespace

c10::DeviceIndex device_at(const void* address) { return static_cast<c10::DeviceIndex>(reinterpret_cast<uintptr_t>(address) >> kDeviceShift); }

void check_storage_bytes(int64_t bytes) {
  const auto tib = [](int64_t count) { return static_cast<double>(count) / (int64_t{1} << 40); };
  TORCH_CHECK_WITH(OutOfMemoryError, bytes >= 0 && bytes <= wire::kStorageBytesMax, "out of memory: ", tib(bytes), " TiB requested for one tensor, at most ",
                   tib(wire::kStorageBytesMax), " TiB can be");
}

void check_room(c10::DeviceIndex device, int64_t bytes) {
  auto& lease = CommandStream::of(device).lease();
  if (bytes > kTrifleBytes && lease.memory_limit() == wire::kStorageBytesMax) lease.need();
  const int64_t limit = lease.memory_limit(), used = allocated_memory(device);
  check_fraction(device, bytes, limit);
  const int64_t held = asks_for_recomputation() ? 0 : used;  // its worker knows what else there is room for
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= limit - held, out_of_memory(bytes, used, limit));
}

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}

c10::Storage adopt_storage(c10::DeviceIndex device, uint64_t id, int64_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, make_data(device, id, bytes),
                                                             device_allocator(), /*resizable=*/true));
}

static StorageHandle& handle_of_data(const c10::DataPtr& data) {
  TORCH_CHECK(data.get_deleter() == &free_handle, "a tensor says cuda, but its storage was not made by a virtual device");
  return *static_cast<StorageHandle*>(data.get_context());
}

StorageHandle& handle_of(const c10::Storage& storage) {
  auto& handle = handle_of_data(storage.data_ptr());
  CommandStream::of(handle.device).check_generation(handle.generation);
  return handle;
}

StorageHandle& handle_of(const c10::TensorImpl& tensor) { return handle_of(tensor.unsafe_storage()); }

void resize_storage(const c10::Storage& storage, int64_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  check_storage_bytes(bytes);
  auto& handle = handle_of_data(impl->data_ptr());
  if (bytes > handle.bytes) check_room(handle.device, bytes - handle.bytes);
  auto& stream = CommandStream::of(handle.device);
  stream.contents().forget(handle);
  handle.bytes == 0 ? renew(stream, handle, bytes) : append_resize(stream, handle, bytes);
  count_resize(handle.device, bytes - handle.bytes);
  handle.bytes = bytes;
  void* context = impl->mutable_data_ptr().release_context();
  impl->set_data_ptr_noswap({fake_address(handle.device, bytes), context, &free_handle, c10::Device(c10::kCUDA, handle.device)});
  impl->set_nbytes(bytes);
}

}  // namespace forebay
