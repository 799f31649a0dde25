// A short wait that keeps the processor: going to sleep and being woken up takes longer than moving a piece of bulk data or answering a
// question, on a virtual machine much longer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace forebay {

// For one thread at a time. Where it waits in vain, as it does where both sides share one processor, it soon hardly tries any more.
class Spinner {
 public:
  // Whether `ready()` was true at once, or came true meanwhile.
  template <class Ready>
  bool until(const Ready& ready) {
    if (ready()) return true;
    if (skipped_ < to_skip_) {
      ++skipped_;
      return false;
    }
    skipped_ = 0;
    const auto end = std::chrono::steady_clock::now() + kLongest;
    while (std::chrono::steady_clock::now() < end) {
#ifdef __x86_64__
      __builtin_ia32_pause();
#endif
      if (!ready()) continue;
      to_skip_ = 0;
      return true;
    }
    to_skip_ = std::min(to_skip_ * 2 + 1, kSkipsMax);
    return false;
  }

 private:
  static constexpr std::chrono::microseconds kLongest{50};
  static constexpr uint32_t kSkipsMax = 63;

  uint32_t to_skip_ = 0;
  uint32_t skipped_ = 0;
};

}  // namespace forebay
