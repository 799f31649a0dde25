#include "base/memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/devices.h"
#include "base/publication.h"
#include "forebay/out_of_memory.h"
#include "forebay/wire.h"

namespace forebay {
namespace {

struct Memory {
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> frees{0};
  std::atomic<double> fraction{1.0};  // of the flavor's bytes that the program lets itself have
  std::atomic<int64_t> flavor{0};     // bytes, if no lease had told them when the fraction was set
};

std::array<Memory, kDevicesMax> memories;

Memory& memory_of(c10::DeviceIndex device) { return memories[static_cast<size_t>(device)]; }

}  // namespace

MemoryUse memory_use(c10::DeviceIndex device) {
  const auto& memory = memory_of(device);
  const int64_t made = memory.allocations.load(), gone = memory.frees.load();
  return {memory.allocated.load(), memory.peak.load(), made, gone, made - gone};
}

int64_t allocated_memory(c10::DeviceIndex device) { return memory_of(device).allocated.load(std::memory_order_relaxed); }

void reset_peak_memory(c10::DeviceIndex device) {
  auto& memory = memory_of(device);
  memory.peak.store(memory.allocated.load());
}

void count_resize(c10::DeviceIndex device, int64_t more_bytes) {
  auto& memory = memory_of(device);
  const int64_t now = memory.allocated.fetch_add(more_bytes, std::memory_order_relaxed) + more_bytes;
  int64_t seen = memory.peak.load(std::memory_order_relaxed);
  while (now > seen && !memory.peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
  tell_memory(device, now);
}

void count_allocation(c10::DeviceIndex device, int64_t bytes) {
  count_resize(device, bytes);
  memory_of(device).allocations.fetch_add(1, std::memory_order_relaxed);
}

void count_free(c10::DeviceIndex device, int64_t bytes) {
  auto& memory = memory_of(device);
  tell_memory(device, memory.allocated.fetch_sub(bytes, std::memory_order_relaxed) - bytes);
  memory.frees.fetch_add(1, std::memory_order_relaxed);
}

void check_fraction(c10::DeviceIndex device, int64_t bytes, int64_t limit) {
  const Memory& memory = memory_of(device);
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

void publish_flavor(c10::DeviceIndex device, const std::string& name, int64_t bytes) {
  tell_flavor(device, name, bytes);
  for (c10::DeviceIndex each = 0; each < device_count(); ++each) tell_memory(each, allocated_memory(each));
}

}  // namespace forebay
