// What every wait for the worker has in common.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/python.h"

namespace forebay {

constexpr int kPollMs = 50;  // between looks at signals

// A program on the device waits for the callback, and what the callback asks for would wait for the program.
inline void refuse_in_callback() {
  TORCH_CHECK_NOT_IMPLEMENTED(!in_callback(), "a host callback cannot use the virtual device, which waits for it; compute in NumPy there, or on jax.devices('cpu')[0]");
}

// A handler runs while the thread that it interrupts waits, with locks held.
inline void refuse_in_signal_handler() {
  refuse_in_callback();
  TORCH_CHECK(!in_signal_handler(),
              "a signal handler cannot read from or wait for the virtual device while the program it interrupts waits for it; set a flag there, and act on it afterwards");
}

// Adds how long it lived to `total`, in nanoseconds.
class WaitClock {
 public:
  explicit WaitClock(std::atomic<uint64_t>& total) : total_(total) {}
  ~WaitClock() {
    const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_);
    total_.fetch_add(static_cast<uint64_t>(waited.count()), std::memory_order_relaxed);
    stay_if_ended();
  }

 private:
  std::atomic<uint64_t>& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace forebay
