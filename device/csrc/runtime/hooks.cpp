// PyTorch asks these hooks about the accelerator: whether there is one, its generators, its pinned memory.
#include "runtime/hooks.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>
#include <new>

#include "base/devices.h"
#include "base/generator.h"
#include "base/leaf_mutex.h"
#include "runtime/storage.h"
#include "stream/stream.h"

namespace forebay {
namespace {

// Host memory that says it is pinned. Transfers need nothing special of it: they are copied into the stream.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto data = c10::GetCPUAllocator()->allocate(bytes);
    void* address = data.get();
    auto* base = new Block{std::move(data), address};
    {
      const std::lock_guard lock(mutex_);
      if (address != nullptr) ranges_[reinterpret_cast<uintptr_t>(address)] = bytes;
    }
    return {address, base, &free_block, c10::Device(c10::kCPU)};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override { default_copy_data(target, source, bytes); }

  bool holds(const void* address) {
    const auto value = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    auto after = ranges_.upper_bound(value);
    if (after == ranges_.begin()) return false;
    --after;
    return value < after->first + std::max<size_t>(after->second, 1);
  }

  // Memory of others that the program says is pinned. Whether it was not yet.
  bool pin(uintptr_t address, size_t bytes) {
    const std::lock_guard lock(mutex_);
    return ranges_.emplace(address, bytes).second;
  }
  // Whether it was pinned.
  bool unpin(uintptr_t address) {
    const std::lock_guard lock(mutex_);
    return ranges_.erase(address) > 0;
  }

  static PinnedAllocator& get() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  struct Block {
    c10::DataPtr data;
    void* address;
  };
  static void free_block(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      const std::lock_guard lock(get().mutex_);
      get().ranges_.erase(reinterpret_cast<uintptr_t>(block->address));
    }
    delete block;
  }

  LeafMutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return device_count() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex current_device() const override { return forebay::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return forebay::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = forebay::current_device();
    if (device >= 0) set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { CommandStream::of(device_named(c10::Device(c10::kCUDA, device))).synchronize(); }
  std::string showConfig() const override { return "Forebay virtual device"; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(device_named(c10::Device(c10::kCUDA, index)));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<VirtualGenerator>(device_named(c10::Device(c10::kCUDA, index)));
  }

  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::get().holds(address); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  c10::Device getDeviceFromPtr(void* address) const override { return {c10::kCUDA, device_at(address)}; }
};

}  // namespace

bool pin_memory(uintptr_t address, size_t bytes) { return PinnedAllocator::get().pin(address, bytes); }
bool unpin_memory(uintptr_t address) { return PinnedAllocator::get().unpin(address); }

// The registry caches its object during `import torch`, before we are loaded, and gives it out by reference. The class has no
// data members, so ours can be made in its place.
void install_hooks() {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface), "the hooks must fit where the default ones are");
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  new (hooks) Hooks;
  at::globalContext().lazyInitDevice(c10::kCUDA);
}

}  // namespace forebay
