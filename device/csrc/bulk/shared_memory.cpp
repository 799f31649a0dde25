#include "bulk/shared_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace forebay {

static_assert(SharedMemory::kSlotBytes <= wire::kChunkBytesMax);
static_assert(SharedMemory::kBytes <= wire::kSharedBytesMax);

void SharedMemory::map(int descriptor, uint64_t bytes) {
  const auto closed = c10::make_scope_exit([descriptor] { ::close(descriptor); });
  struct stat status {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  TORCH_CHECK(bytes == kBytes && ::fstat(descriptor, &status) == 0 && static_cast<uint64_t>(status.st_size) == bytes,
              "the worker shared ", status.st_size, " bytes and says ", bytes, "; ", kBytes, " were asked for");
  TORCH_CHECK(seals >= 0 && (seals & F_SEAL_SHRINK) != 0, "the worker shared memory that it could take away again (its seals are ", seals, ")");
  void* data = ::mmap(data_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (data_ == nullptr ? 0 : MAP_FIXED), descriptor, 0);
  TORCH_CHECK(data != MAP_FAILED, "the worker's shared memory cannot be mapped: ", std::strerror(errno));
  ::madvise(data, bytes, MADV_DONTFORK);
  data_ = static_cast<uint8_t*>(data);
  offered_ = taken();
  free_after_.fill(offered_);
}

void SharedMemory::unmap() {
  if (data_ != nullptr) ::munmap(data_, kBytes);
  data_ = nullptr;
}

uint32_t SharedMemory::taken() const { return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(data_)).load(std::memory_order_acquire); }

// The lowest that is free: what the caches still hold, as long as the worker keeps up.
uint8_t* SharedMemory::offer() {
  const uint32_t taken = this->taken();
  TORCH_CHECK(offered_ - taken <= kUploadSlots, "the worker counts uploads that were not made");
  if (offered_ - taken == kUploadSlots) return nullptr;
  const auto is_free = [&](uint32_t last) { return offered_ - last >= offered_ - taken; };
  const auto found = std::find_if(free_after_.begin(), free_after_.end(), is_free);
  *found = ++offered_;
  return slot(static_cast<size_t>(found - free_after_.begin()));
}

bool SharedMemory::wait(int milliseconds) {
  const uint32_t full = offered_ - kUploadSlots;
  if (spinner_.until([&] { return taken() != full; })) return true;
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  return ::syscall(SYS_futex, data_, FUTEX_WAIT, full, &limit, nullptr, 0) == 0 || errno == EAGAIN;  // the count has changed already
}

void advise_large_pages(void* target, int64_t bytes) {
  constexpr uintptr_t kPageBytes = uintptr_t{2} << 20;
  const auto first = (reinterpret_cast<uintptr_t>(target) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto end = (reinterpret_cast<uintptr_t>(target) + static_cast<uintptr_t>(bytes)) / kPageBytes * kPageBytes;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace forebay
