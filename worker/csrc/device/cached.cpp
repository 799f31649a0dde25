#include "device/cached.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/memory.h"

namespace forebay::worker {

// All of this process's, the oldest first, which goes first: what comes of it is derived last.
class Cache {
 public:
  static Cache& of_process() {
    static Cache cache;
    return cache;
  }

  void add(Cached* one) {
    thread_local const bool is_asked = [] {
      reclaim_on_host_by(Reclaim::kCached, [](int64_t bytes) { of_process().evict(bytes); });
      return true;
    }();
    (void)is_asked;
    const std::lock_guard guard(mutex_);
    all_.push_back(one);
  }

  void remove(const Cached* one) {
    const std::lock_guard guard(mutex_);
    std::erase(all_, one);
  }

  std::shared_ptr<void> contents(const Cached& one) {
    const std::lock_guard guard(mutex_);
    return one.contents_;
  }

 private:
  void evict(int64_t bytes) {
    const int64_t wanted = allocated_on_host() - bytes;
    while (allocated_on_host() > wanted && take_oldest() != nullptr) {
    }
  }

  // Of what nobody uses.
  std::shared_ptr<void> take_oldest() {
    const std::lock_guard guard(mutex_);
    const auto found = std::find_if(all_.begin(), all_.end(), [](const Cached* one) { return one->contents_.use_count() == 1; });
    return found == all_.end() ? nullptr : std::exchange((*found)->contents_, nullptr);
  }

  std::mutex mutex_;
  std::vector<Cached*> all_;
};

Cached::Cached(std::shared_ptr<void> contents, bool is_on_host) : contents_(std::move(contents)) {
  if (is_on_host) Cache::of_process().add(this);
}

Cached::~Cached() { Cache::of_process().remove(this); }

std::shared_ptr<void> Cached::contents() const { return Cache::of_process().contents(*this); }

}  // namespace forebay::worker
