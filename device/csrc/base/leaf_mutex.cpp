#include "base/leaf_mutex.h"

namespace forebay {
namespace {

struct LeafMutexes {
  std::mutex mutex;  // guards the list; taken before those in it
  LeafMutex* last = nullptr;

  // Threads may end as late as the process.
  static LeafMutexes& get() {
    static auto* all = new LeafMutexes;
    return *all;
  }
};

}  // namespace

LeafMutex::LeafMutex() {
  auto& all = LeafMutexes::get();
  const std::lock_guard lock(all.mutex);
  before_ = all.last;
  if (before_ != nullptr) before_->after_ = this;
  all.last = this;
}

LeafMutex::~LeafMutex() {
  auto& all = LeafMutexes::get();
  const std::lock_guard lock(all.mutex);
  (after_ != nullptr ? after_->before_ : all.last) = before_;
  if (before_ != nullptr) before_->after_ = after_;
}

void LeafMutex::lock_all() {
  auto& all = LeafMutexes::get();
  all.mutex.lock();
  for (auto* one = all.last; one != nullptr; one = one->before_) one->lock();
}

void LeafMutex::unlock_all() {
  auto& all = LeafMutexes::get();
  for (auto* one = all.last; one != nullptr; one = one->before_) one->unlock();
  all.mutex.unlock();
}

}  // namespace forebay
