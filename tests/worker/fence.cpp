// Preloaded into a worker: each block that PyTorch or a session's storage asks for ends at a page that nobody may touch, and memory that
// nobody has written holds a byte of the test's choice. A kernel that leads past its tensors then ends the worker, and what it reads before them,
// or leaves unwritten, differs between two workers that differ in the byte.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <atomic>

#include <dlfcn.h>
#include <sys/mman.h>

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 64;                // of PyTorch's allocations; also what worker/csrc/base/memory.cpp keeps before the data
constexpr size_t kArenaBytes = size_t{1} << 44;  // addresses alone, each given out once, so that what is freed stays closed
constexpr size_t kBlockBytesMax = size_t{1} << 30;

struct Arena {
  uint8_t* begin;
  int fill;
  size_t zeroed_bytes;  // the test's own storages, by whose size a calloc of the worker is told from others
  std::atomic<size_t> taken{0};
};

size_t number_of(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

Arena& arena() {
  static Arena made{static_cast<uint8_t*>(::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
                    static_cast<int>(number_of("FENCE_FILL")), number_of("FENCE_STORAGE_BYTES")};
  return made;
}

// The first page of a block's range: its size and place, then the byte, so that a write before the block can be seen.
struct Head {
  size_t range_bytes;  // that may be touched
  uint8_t* block;
};

void* take(size_t bytes) {
  Arena& the = arena();
  const size_t range = (kPageBytes + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (bytes > kBlockBytesMax) return nullptr;
  const size_t start = the.taken.fetch_add(range + kPageBytes);
  if (start + range + kPageBytes > kArenaBytes) return nullptr;
  uint8_t* first = the.begin + start;
  if (::mprotect(first, range, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(first, the.fill, range);
  uint8_t* block = first + (range - bytes) / kAlignment * kAlignment;
  *reinterpret_cast<Head*>(first) = {range, block};
  return block;
}

// A block begins on the second page of its range, or near the end of the first one.
uint8_t* first_of(void* block) {
  const auto page = reinterpret_cast<uintptr_t>(block) / kPageBytes * kPageBytes;
  for (uintptr_t first = page - kPageBytes; first <= page; first += kPageBytes) {
    if (first >= reinterpret_cast<uintptr_t>(arena().begin) && reinterpret_cast<Head*>(first)->block == block) return reinterpret_cast<uint8_t*>(first);
  }
  std::abort();
}

void give_back(void* block) {
  uint8_t* first = first_of(block);
  const Head head = *reinterpret_cast<Head*>(first);
  for (uint8_t* byte = first + sizeof(Head); byte < head.block; ++byte) {
    if (*byte != static_cast<uint8_t>(arena().fill)) std::abort();  // somebody wrote before the block
  }
  ::madvise(first, head.range_bytes, MADV_DONTNEED);
  ::mprotect(first, head.range_bytes, PROT_NONE);
}

bool is_ours(const void* block) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  const auto begin = reinterpret_cast<uintptr_t>(arena().begin);
  return address >= begin && address < begin + kArenaBytes;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int posix_memalign(void** block, size_t alignment, size_t bytes) {
  static const auto real = next<int (*)(void**, size_t, size_t)>("posix_memalign");
  if (alignment != kAlignment) return real(block, alignment, bytes);
  *block = take(bytes);
  return *block == nullptr ? ENOMEM : 0;
}

void* __libc_calloc(size_t count, size_t bytes);
void __libc_free(void* block);

void* calloc(size_t count, size_t bytes) {
  if (count != 1 || bytes != number_of("FENCE_STORAGE_BYTES") + 2 * kAlignment) return __libc_calloc(count, bytes);
  void* block = take(bytes - kAlignment);  // the worker asks for what the C library's alignment may cost, which is nothing here
  if (block != nullptr) std::memset(block, 0, bytes - kAlignment);
  return block;
}

void free(void* block) {
  if (block != nullptr && is_ours(block)) return give_back(block);
  __libc_free(block);
}
}
