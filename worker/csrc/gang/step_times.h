// How long the last steps of a program took, as far as a clock of work says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace forebay::worker {

class StepTimes {
 public:
  // A step begins, and the one before ends.
  void begin(uint64_t now_ns) {
    if (since_ns_ && ++begun_ > kUnsettled) {
      if (last_ns_.size() < kKept) last_ns_.push_back(0);
      last_ns_[measured_++ % kKept] = now_ns - *since_ns_;
    }
    since_ns_ = now_ns;
  }
  uint64_t measured() const { return measured_; }
  // Whether the next steps are measured: storages lie where they are to.
  bool is_settled() const { return begun_ >= kUnsettled; }
  // Of the last ones; 0 where none was measured.
  uint64_t median_ns() const {
    if (last_ns_.empty()) return 0;
    auto sorted = last_ns_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }

 private:
  static constexpr size_t kKept = 15;
  static constexpr uint64_t kUnsettled = 2;  // first steps, in which storages come to lie as planned

  std::optional<uint64_t> since_ns_;
  uint64_t begun_ = 0;
  uint64_t measured_ = 0;
  std::vector<uint64_t> last_ns_;
};

}  // namespace forebay::worker
