#include "base/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <string>
#include <utility>

#include <forebay/wire.h>

namespace forebay::worker {

SharedMemory::SharedMemory(size_t bytes)
    : descriptor_(::memfd_create("forebay", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(bytes) {
  if (!descriptor_) throw_errno("a shared area");
  if (::ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0) throw_errno("the size of a shared area");
  if (::fcntl(descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_errno("the seals of a shared area");
  map();
}

SharedMemory::SharedMemory(Descriptor descriptor, size_t bytes) : descriptor_(std::move(descriptor)), bytes_(bytes) {
  const int seals = ::fcntl(this->descriptor(), F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat about {};
  const bool is_whole = seals >= 0 && (seals & wanted) == wanted && ::fstat(this->descriptor(), &about) == 0;
  if (!is_whole || about.st_size != static_cast<off_t>(bytes)) throw wire::WireError("a shared area of another size");
  map();
}

void SharedMemory::map() {
  void* data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(), 0);
  if (data == MAP_FAILED) throw_errno("mapping a shared area");
  data_ = static_cast<uint8_t*>(data);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

uint8_t* SharedMemory::at(uint64_t offset, size_t bytes) const {
  if (data_ == nullptr) throw wire::WireError("there is no shared area; SHARE comes first");
  if (offset < wire::kSharedHeaderBytes || offset > bytes_ || bytes > bytes_ - offset) {
    throw wire::WireError(std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a shared area of " + std::to_string(bytes_) +
                          " bytes, whose payload begins at " + std::to_string(wire::kSharedHeaderBytes));
  }
  return data_ + offset;
}

void SharedMemory::taken() {
  auto* word = reinterpret_cast<uint32_t*>(data_);
  std::atomic_ref<uint32_t>(*word).store(++taken_, std::memory_order_release);
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace forebay::worker
