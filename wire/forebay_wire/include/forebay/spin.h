// A short wait that keeps the processor: going to sleep and being woken up takes longer than most answers, on a virtual machine much longer.
#pragma once

#include <sched.h>

#include <chrono>

namespace forebay {

constexpr std::chrono::microseconds kSpin{50};

// Whether `ready()` came true within kSpin. A process that has one processor does not wait: it would keep the other side from it.
template <class Ready>
bool spin_until(const Ready& ready) {
  static const bool alone = [] {
    cpu_set_t processors;
    return ::sched_getaffinity(0, sizeof(processors), &processors) == 0 && CPU_COUNT(&processors) == 1;
  }();
  if (ready()) return true;
  if (alone) return false;
  const auto until = std::chrono::steady_clock::now() + kSpin;
  while (std::chrono::steady_clock::now() < until) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
    if (ready()) return true;
  }
  return false;
}

}  // namespace forebay
