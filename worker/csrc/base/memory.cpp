#include "base/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <forebay/out_of_memory.h>

namespace forebay::worker {

namespace {

constexpr size_t kHeaderBytes = 64;  // as PyTorch aligns its allocations, so that the data stays aligned
constexpr uint8_t kAbovePyTorchs = 1;

constexpr rlim_t kFenceRoomBytes = rlim_t{4} << 30;  // for threads' stacks and libraries' scratch

// Private writable memory of this process, as /proc/self/statm counts it (its sixth field, in pages).
int64_t data_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  for (int field = 0; field < 6; ++field) file >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

std::atomic<int64_t> limit_bytes{std::numeric_limits<int64_t>::max()};
std::atomic<int64_t> allocated_bytes{0};

thread_local std::array<std::function<void(int64_t)>, 2> reclaims;  // by their turn
thread_local int uncounted = 0;  // as many UncountedOnHost live

// Before the data of an allocation.
struct Header {
  int64_t bytes;
  void* block;  // as the C library gave it
};
static_assert(sizeof(Header) <= kHeaderBytes);

Header* header_of(void* data) { return reinterpret_cast<Header*>(static_cast<uint8_t*>(data) - kHeaderBytes); }

void release(void* data) {
  if (data == nullptr) return;
  const Header header = *header_of(data);
  allocated_bytes.fetch_sub(header.bytes, std::memory_order_relaxed);
  c10::free_cpu(header.block);
}

// Counts an allocation, if there is room for it. `before`: what was allocated.
bool try_to_take(int64_t bytes, int64_t limit, int64_t& before) {
  before = allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes >= 0 && bytes <= limit && before <= limit - bytes) return true;
  allocated_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

// Throws c10::OutOfMemoryError.
void take(int64_t bytes) {
  const int64_t limit = limit_bytes.load(std::memory_order_relaxed);
  int64_t before = 0;
  if (try_to_take(bytes, limit, before)) return;
  for (const auto& reclaim : reclaims) {
    if (!reclaim || bytes < 0 || bytes > limit) continue;
    reclaim(before - (limit - bytes));
    if (try_to_take(bytes, limit, before)) return;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory(bytes, before, limit));
}

// Large blocks are worth large pages: new ones come from the system, which hands over, and zeroes, page by page.
void advise_large_pages(void* block, int64_t bytes) {
  constexpr uintptr_t kPageBytes = uintptr_t{2} << 20;
  const auto first = (reinterpret_cast<uintptr_t>(block) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto end = (reinterpret_cast<uintptr_t>(block) + static_cast<uintptr_t>(bytes)) / kPageBytes * kPageBytes;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a hint: nothing depends on it
}

void* reserve(int64_t bytes) {
  try {
    return c10::alloc_cpu(static_cast<size_t>(bytes) + kHeaderBytes);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

// The C library knows which memory is fresh from the system and need not be overwritten. It aligns less than PyTorch does.
void* reserve_zeroed(int64_t bytes) { return std::calloc(1, static_cast<size_t>(bytes) + 2 * kHeaderBytes); }

c10::DataPtr allocate_on_host(size_t size, void* (*reserve_block)(int64_t), bool counted = true) {
  const c10::Device host(c10::kCPU);
  if (size == 0) return {nullptr, nullptr, &release, host};
  const auto bytes = static_cast<int64_t>(size);
  const int64_t counted_bytes = counted ? bytes : 0;
  if (counted) take(bytes);
  void* block = reserve_block(bytes);
  if (block == nullptr) {
    allocated_bytes.fetch_sub(counted_bytes, std::memory_order_relaxed);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "asked for ", human_bytes(bytes), ", but the worker's host has no memory left; free tensors or try again later");
  }
  const auto past_header = reinterpret_cast<uintptr_t>(block) + kHeaderBytes + kHeaderBytes - 1;
  void* data = reinterpret_cast<void*>(past_header / kHeaderBytes * kHeaderBytes);
  advise_large_pages(data, bytes);
  *header_of(data) = {counted_bytes, block};
  return {data, data, &release, host};
}

class LimitedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override { return allocate_on_host(size, &reserve, /*counted=*/uncounted == 0); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t count) const override { default_copy_data(target, source, count); }
};

// Memory of others.
struct Counted {
  int64_t bytes;
  std::function<void()> release;
};

void release_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  allocated_bytes.fetch_sub(counted->bytes, std::memory_order_relaxed);
  counted->release();
}

LimitedAllocator& limited_allocator() {
  static LimitedAllocator allocator;
  return allocator;
}

}  // namespace

void install_host_limit() {
  c10::SetCPUAllocator(&limited_allocator(), kAbovePyTorchs);
}

UncountedOnHost::UncountedOnHost() { ++uncounted; }

UncountedOnHost::~UncountedOnHost() { --uncounted; }

c10::DataPtr allocate_zeroed_on_host(int64_t bytes) { return allocate_on_host(static_cast<size_t>(bytes), &reserve_zeroed); }

c10::DataPtr allocate_uncounted_on_host(int64_t bytes) { return allocate_on_host(static_cast<size_t>(bytes), &reserve, /*counted=*/false); }

c10::DataPtr adopt_on_host(void* data, int64_t bytes, std::function<void()> release, bool is_counted) {
  auto counted = std::make_unique<Counted>(Counted{0, std::move(release)});
  c10::DataPtr result(data, counted.release(), &release_counted, c10::Device(c10::kCPU));
  if (!is_counted) return result;
  take(bytes);
  static_cast<Counted*>(result.get_context())->bytes = bytes;
  return result;
}

void reclaim_on_host_by(Reclaim turn, std::function<void(int64_t)> reclaim) { reclaims[static_cast<size_t>(turn)] = std::move(reclaim); }

int64_t allocated_on_host() { return allocated_bytes.load(std::memory_order_relaxed); }

void set_host_limit(int64_t bytes) { limit_bytes.store(bytes, std::memory_order_relaxed); }

void fence_process(int64_t limit_bytes) {
  static const int64_t own_bytes = data_bytes();
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  const auto wanted = static_cast<rlim_t>(own_bytes) + static_cast<rlim_t>(limit_bytes) + kFenceRoomBytes;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_DATA, &limit);
}

}  // namespace forebay::worker
