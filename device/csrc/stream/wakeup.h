// Puts a thread to sleep until another has work for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>

namespace forebay {

class Wakeup {
 public:
  // Cheap while nobody sleeps.
  void wake() {
    if (!asleep_.load(std::memory_order_relaxed)) [[likely]] return;
    asleep_ = false;
    wake_.notify_one();
  }
  // From here on `wake` is heard. The caller looks once more for work, and then sleeps, or not.
  void begin_sleep() { asleep_ = true; }
  void cancel_sleep() { asleep_ = false; }
  // False if nobody woke it for that long.
  bool sleep(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    const bool woken = wake_.wait_for(lock, longest, [this] { return !asleep_.load(); });
    asleep_ = false;
    return woken;
  }
  // In a forked child.
  void forked() {
    new (&mutex_) std::mutex;
    new (&wake_) std::condition_variable;
    asleep_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
};

}  // namespace forebay
