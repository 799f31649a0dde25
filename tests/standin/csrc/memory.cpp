#include "memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace standin {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kArenaBytes = size_t{1} << 40;  // addresses, not memory

size_t whole_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

uintptr_t map(int protection, int flags, int file) {
  void* address = ::mmap(nullptr, kArenaBytes, protection, flags | MAP_NORESERVE, file, 0);
  if (address == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of the stand-in's memory");
  return reinterpret_cast<uintptr_t>(address);
}

struct Arenas {
  uintptr_t device = 0, device_shadow = 0, pinned = 0, pinned_shadow = 0;
  int pinned_file = -1;

  Arenas() {
    device = map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    device_shadow = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    ::madvise(reinterpret_cast<void*>(device_shadow), kArenaBytes, MADV_NOHUGEPAGE);
    pinned_file = pinned_memory();
    pinned = map(PROT_READ | PROT_WRITE, MAP_SHARED, pinned_file);
    pinned_shadow = map(PROT_READ | PROT_WRITE, MAP_SHARED, pinned_file);
  }

  // A process that was forked has pinned memory of its own, or it would write into that of the others. The one before has none in use.
  void renew() {
    ::close(pinned_file);
    pinned_file = pinned_memory();
    for (const uintptr_t place : {pinned, pinned_shadow}) {
      void* address = ::mmap(reinterpret_cast<void*>(place), kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pinned_file, 0);
      if (address == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of the stand-in's pinned memory");
    }
  }

 private:
  static int pinned_memory() {
    const int file = ::memfd_create("standin-pinned", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(kArenaBytes)) != 0) {
      throw std::system_error(errno, std::generic_category(), "memfd of the stand-in's pinned memory");
    }
    return file;
  }
};

Arenas& arenas() {
  static Arenas* made = [] {
    auto* arenas_made = new Arenas;
    ::pthread_atfork(nullptr, nullptr, [] { arenas().renew(); });
    return arenas_made;
  }();
  return *made;
}

bool lies_in(const void* address, uintptr_t arena) { return reinterpret_cast<uintptr_t>(address) - arena < kArenaBytes; }

// The whole pages of a range; those that the block's end shares with nobody count as whole.
Range pages_of(const Block& block, const Range& range) {
  const uintptr_t begin = whole_pages(range.begin);
  uintptr_t end = (range.begin + range.bytes) / kPageBytes * kPageBytes;
  if (range.begin + range.bytes == block.begin + block.asked_bytes) end = block.begin + block.bytes;
  return {begin, end > begin ? end - begin : 0, range.writes};
}

void protect(const Block& block, const Range& range, int protection) {
  const Range pages = pages_of(block, range);
  if (pages.bytes == 0) return;
  if (::mprotect(reinterpret_cast<void*>(pages.begin), pages.bytes, protection) != 0) {
    throw std::system_error(errno, std::generic_category(), "mprotect of the stand-in's pinned memory");
  }
}

bool overlap(const Range& one, const Range& other) { return one.begin < other.begin + other.bytes && other.begin < one.begin + one.bytes; }

bool covers(const Range& one, const Range& other) {
  return one.begin <= other.begin && other.begin + other.bytes <= one.begin + one.bytes && (one.writes || !other.writes);
}

std::string told(const Access& access) {
  return access.name + " (job " + std::to_string(access.job) + " of " + stream_name(access.stream) + ")";
}

std::string told(const Block& block) {
  const std::string where = block.place == Place::kPinned ? "pinned memory" : "device " + std::to_string(block.device);
  return "a block of " + std::to_string(block.asked_bytes) + " bytes of " + where;
}

struct sigaction previous_handler;

void write_out(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

void explain_fault(int number, siginfo_t* info, void*) {
  if (is_device_address(info->si_addr)) {
    write_out("standin: the host touched device memory\n");
  } else if (is_pinned_address(info->si_addr)) {
    write_out("standin: the host touched pinned memory that a copy from the device writes to, without waiting for the copy: a synchronisation is missing\n");
  }
  ::sigaction(number, &previous_handler, nullptr);  // the fault comes again, to whoever handled it before
}

}  // namespace

void merge(Clock& clock, const Clock& other) {
  for (size_t stream = 0; stream < clock.size(); ++stream) clock[stream] = std::max(clock[stream], other[stream]);
}

std::string stream_name(int stream) {
  return "stream " + std::to_string(stream % kStreamsPerDevice) + " of device " + std::to_string(stream / kStreamsPerDevice);
}

Block::~Block() {
  const auto offset = begin - (place == Place::kDevice ? arenas().device : arenas().pinned);
  if (place == Place::kDevice) {
    ::madvise(reinterpret_cast<void*>(arenas().device_shadow + offset), bytes, MADV_DONTNEED);
  } else {
    ::fallocate(arenas().pinned_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
}

Memory::Memory() : next_{arenas().device, arenas().pinned} {}

BlockRef Memory::allocate(Place place, int device, size_t bytes) {
  const size_t pages = whole_pages(bytes);
  uintptr_t& next = next_[static_cast<size_t>(place)];
  const uintptr_t arena = place == Place::kDevice ? arenas().device : arenas().pinned;
  if (next - arena > kArenaBytes - pages) throw std::runtime_error("the stand-in has no addresses left");
  auto block = std::make_shared<Block>(place, device, next, pages, bytes);
  next += pages;
  blocks_.emplace(block->begin, block);
  return block;
}

BlockRef Memory::find(const void* address) const {
  auto found = blocks_.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (found == blocks_.begin()) return nullptr;
  --found;
  return reinterpret_cast<uintptr_t>(address) < found->first + found->second->bytes ? found->second : nullptr;
}

bool is_device_address(const void* address) { return lies_in(address, arenas().device); }
bool is_pinned_address(const void* address) { return lies_in(address, arenas().pinned); }

uint8_t* shadow_of(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (is_device_address(address)) return reinterpret_cast<uint8_t*>(number - arenas().device + arenas().device_shadow);
  if (is_pinned_address(address)) return reinterpret_cast<uint8_t*>(number - arenas().pinned + arenas().pinned_shadow);
  return nullptr;
}

void close_to_host(const Block& block, const Range& range) { protect(block, range, PROT_NONE); }
void open_to_host(const Block& block, const Range& range) { protect(block, range, PROT_READ | PROT_WRITE); }

void explain_faults() {
  arenas();
  struct sigaction action {};
  action.sa_sigaction = &explain_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGSEGV, &action, &previous_handler);
}

std::string note_access(Block& block, Access access, const Clock& known) {
  std::string misuse;
  for (const Access& other : block.accesses) {
    if (other.stream == access.stream || known[static_cast<size_t>(other.stream)] >= other.job) continue;
    if (!(access.range.writes || other.range.writes) || !overlap(access.range, other.range)) continue;
    misuse = told(access) + (access.range.writes ? " writes to " : " reads ") + told(block) + " that " + told(other) +
             (other.range.writes ? " writes to" : " reads") + ", and nothing makes it wait: an event or a synchronisation is missing";
    break;
  }
  std::erase_if(block.accesses, [&](const Access& other) {
    return (other.stream == access.stream && covers(access.range, other.range)) || known[static_cast<size_t>(other.stream)] >= other.job;
  });
  block.accesses.push_back(std::move(access));
  return misuse;
}

std::string misuse_by_free(const Block& block, const Clock& known) {
  for (const Access& access : block.accesses) {
    if (access.stream == block.home || block.recorded.count(access.stream) != 0 || known[static_cast<size_t>(access.stream)] >= access.job) continue;
    return told(block) + " was freed while " + told(access) + " may still run: record it on that stream, or synchronise first";
  }
  return "";
}

}  // namespace standin
