// The worker's clock, which no correction of the host's time changes.
#pragma once

#include <chrono>
#include <cstdint>

namespace forebay::worker {

using Clock = std::chrono::steady_clock;

inline uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

}  // namespace forebay::worker
