#include "tier2/repeated_segment.h"

namespace forebay::worker {

SegmentCosts RepeatedSegment::costs() const {
  constexpr double kSecond = 1e9;  // in nanoseconds
  return {static_cast<double>(least_ns_) / kSecond, period_s_, std::chrono::duration<double>(gathering_.shortest()).count()};
}

}  // namespace forebay::worker
