#include "base/publication.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "monitoring/page.h"

namespace forebay {
namespace {

using monitoring::atomic;

std::atomic<monitoring::Page*> published{nullptr};
std::mutex publishing;       // guards the first publication, and what follows
std::string published_file;  // empty: none

monitoring::Device* told(c10::DeviceIndex device) {
  auto* page = published.load(std::memory_order_acquire);
  return page == nullptr ? nullptr : &page->devices[static_cast<size_t>(device)];
}

// Memory of the file; nothing where the host has no room for it, as a write to it would end the process then.
monitoring::Page* mapped(int fd) {
  constexpr size_t kBytes = sizeof(monitoring::Page);
  if (::posix_fallocate(fd, 0, kBytes) != 0) return nullptr;
  void* found = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return found == MAP_FAILED ? nullptr : static_cast<monitoring::Page*>(found);
}

// A page in a new file, beside which none is left of processes that have ended; in this process's own memory where that cannot be.
monitoring::Page* new_page(int64_t started) {
  const std::string folder = monitoring::folder();
  ::mkdir(folder.c_str(), 0700);
  monitoring::each_page(folder, [&](const std::string& name, bool runs) {
    if (!runs) ::unlink((folder + "/" + name).c_str());
  });
  const std::string file = folder + "/" + monitoring::file_of(::getpid(), started);
  const int fd = monitoring::is_own(folder) ? ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
  monitoring::Page* page = fd < 0 ? nullptr : mapped(fd);
  if (page != nullptr) {
    published_file = file;
  } else if (fd >= 0) {
    ::unlink(file.c_str());
  }
  if (fd >= 0) ::close(fd);
  return page != nullptr ? page : new monitoring::Page{};
}

void publish() {
  const int64_t started = monitoring::started(::getpid());
  monitoring::Page* page = new_page(started);
  page->process = ::getpid();
  page->started = started;
  page->count = device_count();
  page->mark = monitoring::kMark;
  published.store(page, std::memory_order_release);
}

}  // namespace

void tell_flavor(c10::DeviceIndex device, const std::string& name, int64_t bytes) {
  const std::lock_guard lock(publishing);
  if (published.load() == nullptr) publish();
  auto& record = *told(device);
  const auto next = static_cast<size_t>(1 - atomic(record.name).load());
  record.names[next].fill('\0');
  std::copy_n(name.data(), std::min(name.size(), monitoring::kNameBytes - 1), record.names[next].data());
  atomic(record.name).store(static_cast<int64_t>(next));
  atomic(record.total).store(bytes);
}

void tell_memory(c10::DeviceIndex device, int64_t allocated) {
  if (auto* record = told(device)) atomic(record->allocated).store(allocated, std::memory_order_relaxed);
}

void tell_lease(c10::DeviceIndex device, bool open) {
  auto* record = told(device);
  if (record == nullptr) return;
  const std::lock_guard lock(publishing);
  const int64_t now = monitoring::now_ns(), since = atomic(record->held_since_ns).load();
  if (open) atomic(record->computed).store(1);
  if (open == (since != 0)) return;
  if (since != 0) atomic(record->held_ns).fetch_add(now - since);
  atomic(record->held_since_ns).store(open ? now : 0);
}

int64_t held_ns(c10::DeviceIndex device) {
  auto* record = told(device);
  return record == nullptr ? 0 : monitoring::held(*record, monitoring::now_ns());
}

bool lease_is_open(c10::DeviceIndex device) {
  auto* record = told(device);
  return record != nullptr && atomic(record->held_since_ns).load() != 0;
}

void withdraw_publication() {
  const std::lock_guard lock(publishing);
  if (!published_file.empty()) ::unlink(published_file.c_str());
  published_file.clear();
}

void forked_publication() {
  new (&publishing) std::mutex;
  new (&published_file) std::string;
  published.store(nullptr);
}

}  // namespace forebay
