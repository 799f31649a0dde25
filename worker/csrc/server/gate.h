// The lease as the worker sees it: whether device work may run, and what the pool must hear. Knows no clock.
#pragma once

#include <cstdint>
#include <optional>

namespace forebay::worker {

class Gate {
 public:
  bool is_open() const { return epoch_.has_value(); }
  std::optional<uint64_t> epoch() const { return epoch_; }

  void open(uint64_t epoch) {
    epoch_ = epoch;
    opened_ = epoch;
    starved_ = false;
  }
  // The span of a lease ended: noted for a lease that the pool is still to open.
  void mark(uint64_t epoch) {
    if (epoch > opened_) marked_ = epoch;
  }
  // Whether the open lease's span had ended before it was opened.
  bool is_marked() const { return epoch_ && *epoch_ <= marked_; }
  // The epoch that was open, if any.
  std::optional<uint64_t> shut() {
    const auto before = epoch_;
    epoch_.reset();
    return before;
  }
  // Device work waits. True the first time since the gate was last open.
  bool starve() {
    if (starved_) return false;
    starved_ = true;
    return true;
  }

 private:
  std::optional<uint64_t> epoch_;
  uint64_t opened_ = 0;
  uint64_t marked_ = 0;
  bool starved_ = false;
};

}  // namespace forebay::worker
