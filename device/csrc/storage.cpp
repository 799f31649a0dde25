#include "storage.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "stream.h"

namespace forebay {
namespace {

constexpr uintptr_t kAddressBase = uintptr_t{1} << 46;  // outside what a process is given, so a stray access faults
constexpr uintptr_t kAlignment = 512;

std::atomic<uintptr_t> next_address{kAddressBase};
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> allocations{0};
std::atomic<int64_t> frees{0};

void count(int64_t bytes) {
  const int64_t now = allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void* fake_address(int64_t bytes) {
  const auto span = (static_cast<uintptr_t>(bytes) / kAlignment + 1) * kAlignment;
  return reinterpret_cast<void*>(next_address.fetch_add(span, std::memory_order_relaxed));
}

void free_handle(void* context) {
  const std::unique_ptr<StorageHandle> handle(static_cast<StorageHandle*>(context));
  allocated.fetch_sub(handle->bytes, std::memory_order_relaxed);
  frees.fetch_add(1, std::memory_order_relaxed);
  CommandStream::get().contents().forget(*handle);
  CommandStream::get().free(*handle);
}

c10::DataPtr make_data(uint64_t id, int64_t bytes) {
  auto handle = std::unique_ptr<StorageHandle>(new StorageHandle{id, CommandStream::get().generation(), bytes});
  count(bytes);
  allocations.fetch_add(1, std::memory_order_relaxed);
  return {fake_address(bytes), handle.release(), &free_handle, c10::Device(c10::kCUDA, 0)};
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto& stream = CommandStream::get();
    const uint64_t id = stream.new_storage();
    auto data = make_data(id, static_cast<int64_t>(bytes));
    stream.allocate(id, static_cast<int64_t>(bytes));
    return data;
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the bytes of a virtual device's storage cannot be copied by address; copy the tensor");
  }
};

}  // namespace

MemoryUse memory_use() {
  const int64_t made = allocations.load(), gone = frees.load();
  return {allocated.load(), peak.load(), made, gone, made - gone};
}

void reset_peak_memory() { peak.store(allocated.load()); }

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}

c10::Storage adopt_storage(uint64_t id, int64_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, make_data(id, bytes),
                                                             device_allocator(), /*resizable=*/true));
}

static StorageHandle& handle_of_data(const c10::DataPtr& data) {
  TORCH_CHECK(data.get_deleter() == &free_handle, "a tensor says cuda, but its storage was not made by the virtual device");
  return *static_cast<StorageHandle*>(data.get_context());
}

StorageHandle& handle_of(const c10::TensorImpl& tensor) {
  auto& handle = handle_of_data(tensor.unsafe_storage().data_ptr());
  CommandStream::get().check_generation(handle.generation);
  return handle;
}

void resize_storage(const c10::Storage& storage, int64_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  auto& handle = handle_of_data(impl->data_ptr());
  CommandStream::get().contents().forget(handle);
  CommandStream::get().resize(handle, bytes);
  count(bytes - handle.bytes);
  handle.bytes = bytes;
  void* context = impl->mutable_data_ptr().release_context();
  impl->set_data_ptr_noswap({fake_address(bytes), context, &free_handle, c10::Device(c10::kCUDA, 0)});
  impl->set_nbytes(bytes);
}

}  // namespace forebay
