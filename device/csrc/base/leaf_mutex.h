// Locks that threads hold for moments. In a forked child all of them are free, and what they guard is whole, whatever other threads were doing.
#pragma once

#include <mutex>

namespace forebay {

// Taken last: who holds it takes no other lock of ours, does not wait, and does not ask for the GIL.
class LeafMutex {
 public:
  LeafMutex();
  ~LeafMutex();
  LeafMutex(const LeafMutex&) = delete;
  LeafMutex& operator=(const LeafMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // Around a fork, in the thread that forks: before it, and after it in the parent and in the child.
  static void lock_all();
  static void unlock_all();

 private:
  std::mutex mutex_;
  LeafMutex* before_ = nullptr;
  LeafMutex* after_ = nullptr;
};

}  // namespace forebay
