#include "storage.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "forebay/out_of_memory.h"
#include "publication.h"
#include "stream.h"

namespace forebay {
namespace {

constexpr int kDeviceShift = 56;                        // of a fake address: above it stands its device
constexpr uintptr_t kAddressBase = uintptr_t{1} << 47;  // outside what a process is given, so a stray access faults
constexpr uintptr_t kAlignment = 512;
constexpr int64_t kTrifleBytes = 256 << 20;  // may be allocated before anybody knows how much there is

struct Memory {
  std::atomic<uintptr_t> next_address{kAddressBase};
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> frees{0};
  std::atomic<double> fraction{1.0};  // of the flavor's bytes that the program lets itself have
  std::atomic<int64_t> flavor{0};     // bytes, where there was no lease yet when it was set
};

std::array<Memory, kDevicesMax> memories;

Memory& memory_of(c10::DeviceIndex device) { return memories[static_cast<size_t>(device)]; }

void add_allocated(c10::DeviceIndex device, int64_t bytes) {
  auto& [next_address, allocated, peak, allocations, frees, fraction, flavor] = memory_of(device);
  const int64_t now = allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
  tell_memory(device, now);
}

void* fake_address(c10::DeviceIndex device, int64_t bytes) {
  const auto span = (static_cast<uintptr_t>(bytes) / kAlignment + 1) * kAlignment;
  const auto address = memory_of(device).next_address.fetch_add(span, std::memory_order_relaxed);
  return reinterpret_cast<void*>(address | static_cast<uintptr_t>(device) << kDeviceShift);
}

void free_handle(void* context) {
  const std::unique_ptr<StorageHandle> handle(static_cast<StorageHandle*>(context));
  auto& memory = memory_of(handle->device);
  tell_memory(handle->device, memory.allocated.fetch_sub(handle->bytes, std::memory_order_relaxed) - handle->bytes);
  memory.frees.fetch_add(1, std::memory_order_relaxed);
  CommandStream::of(*handle).contents().forget(*handle);
  CommandStream::of(*handle).free(*handle);
}

c10::DataPtr make_data(c10::DeviceIndex device, uint64_t id, int64_t bytes) {
  auto handle = std::unique_ptr<StorageHandle>(new StorageHandle{id, CommandStream::of(device).generation(), bytes, device});
  add_allocated(device, bytes);
  memory_of(device).allocations.fetch_add(1, std::memory_order_relaxed);
  return {fake_address(device, bytes), handle.release(), &free_handle, c10::Device(c10::kCUDA, device)};
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    check_storage_bytes(static_cast<int64_t>(bytes));
    const c10::DeviceIndex device = current_device();
    check_room(device, static_cast<int64_t>(bytes));
    auto& stream = CommandStream::of(device);
    const uint64_t id = stream.new_storage();
    auto data = make_data(device, id, static_cast<int64_t>(bytes));
    stream.allocate(id, static_cast<int64_t>(bytes));
    return data;
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the bytes of a virtual device's storage cannot be copied by address; copy the tensor");
  }
};

}  // namespace

MemoryUse memory_use(c10::DeviceIndex device) {
  const auto& memory = memory_of(device);
  const int64_t made = memory.allocations.load(), gone = memory.frees.load();
  return {memory.allocated.load(), memory.peak.load(), made, gone, made - gone};
}

void reset_peak_memory(c10::DeviceIndex device) {
  auto& memory = memory_of(device);
  memory.peak.store(memory.allocated.load());
}

c10::DeviceIndex device_at(const void* address) { return static_cast<c10::DeviceIndex>(reinterpret_cast<uintptr_t>(address) >> kDeviceShift); }

void check_storage_bytes(int64_t bytes) {
  const auto tib = [](int64_t count) { return static_cast<double>(count) / (int64_t{1} << 40); };
  TORCH_CHECK_WITH(OutOfMemoryError, bytes >= 0 && bytes <= wire::kStorageBytesMax, "out of memory: ", tib(bytes), " TiB requested for one tensor, at most ",
                   tib(wire::kStorageBytesMax), " TiB can be");
}

static void check_fraction(const Memory& memory, int64_t bytes, int64_t limit) {
  const double fraction = memory.fraction.load(std::memory_order_relaxed);
  if (fraction >= 1) [[likely]] return;
  const int64_t flavor = limit == wire::kStorageBytesMax ? memory.flavor.load() : limit;
  const auto bound = static_cast<int64_t>(fraction * static_cast<double>(flavor));
  const int64_t used = memory.allocated.load(std::memory_order_relaxed), available = std::max<int64_t>(bound - used, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= available, "CUDA out of memory. Tried to allocate ", human_bytes(bytes), ": ", human_bytes(used), " are in use, ",
                   human_bytes(available), " available of ", human_bytes(bound), ", which is the fraction ", fraction, " of this virtual device's ",
                   human_bytes(flavor), " that torch.cuda.set_per_process_memory_fraction() allows; free tensors, or set a larger fraction");
}

void set_memory_fraction(c10::DeviceIndex device, double fraction, int64_t flavor_bytes) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "a fraction of a device's memory is a number from 0 to 1, not ", fraction);
  memory_of(device).flavor.store(flavor_bytes);
  memory_of(device).fraction.store(fraction);
}

double memory_fraction(c10::DeviceIndex device) { return memory_of(device).fraction.load(); }

void check_room(c10::DeviceIndex device, int64_t bytes) {
  auto& stream = CommandStream::of(device);
  if (bytes > kTrifleBytes && stream.memory_limit() == wire::kStorageBytesMax) stream.need_lease();
  const int64_t limit = stream.memory_limit(), used = memory_of(device).allocated.load(std::memory_order_relaxed);
  check_fraction(memory_of(device), bytes, limit);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= limit - used, out_of_memory(bytes, used, limit));
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

StorageHandle& handle_of(const c10::TensorImpl& tensor) {
  auto& handle = handle_of_data(tensor.unsafe_storage().data_ptr());
  CommandStream::of(handle).check_generation(handle.generation);
  return handle;
}

void resize_storage(const c10::Storage& storage, int64_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  check_storage_bytes(bytes);
  auto& handle = handle_of_data(impl->data_ptr());
  if (bytes > handle.bytes) check_room(handle.device, bytes - handle.bytes);
  CommandStream::of(handle).contents().forget(handle);
  handle.bytes == 0 ? CommandStream::of(handle).renew(handle, bytes) : CommandStream::of(handle).resize(handle, bytes);
  add_allocated(handle.device, bytes - handle.bytes);
  handle.bytes = bytes;
  void* context = impl->mutable_data_ptr().release_context();
  impl->set_data_ptr_noswap({fake_address(handle.device, bytes), context, &free_handle, c10::Device(c10::kCUDA, handle.device)});
  impl->set_nbytes(bytes);
}

}  // namespace forebay
