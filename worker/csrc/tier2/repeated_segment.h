// A segment that repeats, apart from what carries it out: its steps, when it came, and what that costs.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <forebay/image.h>
#include <forebay/traces.h>

#include "base/clock.h"

namespace forebay::worker {

// How long the steps of a segment take to come, in the last runs.
class Gathering {
 public:
  void note(Clock::duration took) { took_ = {took, took_[0]}; }
  // How long that probably takes, at least; nothing if it is not worth a look.
  Clock::duration shortest() const { return took_[1] > Clock::duration{} ? std::min(took_[0], took_[1]) : took_[0]; }
  Clock::duration expected() const {
    const auto shorter = std::min(took_[0], took_[1]);
    return shorter < kMin ? Clock::duration{} : shorter;
  }

 private:
  static constexpr auto kMin = std::chrono::microseconds(200);
  std::array<Clock::duration, 2> took_{};
};

// What a segment costs, as far as it is known while it has no library.
struct SegmentCosts {
  double busy_s;    // of the device, the least of its comings
  double period_s;  // from one end to the next, the least
  double gather_s;  // until all its steps are there
};

class RepeatedSegment {
 public:
  // How the worker before this one carried the segment out, by the session's image.
  struct Resumed {
    wire::SegmentCourse course;
    uint64_t left;        // times that its library or pipeline is still to be compared
    std::string library;  // its name
    std::vector<uint64_t> pipeline;
  };

  // `is_steady`: what carries it out depends on how often it came, never on times; so a worker that does the same again has the same results.
  RepeatedSegment(uint64_t number, std::vector<wire::Step*> path, bool is_steady, std::optional<Resumed> resumed = std::nullopt)
      : number_(number), path_(std::move(path)), is_steady_(is_steady), resumed_(std::move(resumed)) {}

  uint64_t number() const { return number_; }
  const std::vector<wire::Step*>& path() const { return path_; }
  bool is_steady() const { return is_steady_; }
  const Gathering& gathering() const { return gathering_; }
  SegmentCosts costs() const;
  const std::optional<Resumed>& resumed() const { return resumed_; }
  // Whether its library may be adopted as soon as it has arrived: it was described just now, and no other worker of the session had carried it out without.
  bool is_adopted_at_once() const { return is_steady() && (!resumed_ || resumed_->course != wire::SegmentCourse::kTier1); }
  // It is known what carries it out. What another worker had is of no matter any more.
  void sought() { resumed_.reset(); }

  // Of all ends of segments in its session, which one was its last.
  uint64_t last_end() const { return last_end_; }
  void ended_at(uint64_t end) { last_end_ = end; }

 protected:
  // While it has nothing but tier 1: its device worked so long in one coming; it took so long from end to end.
  void note_work(uint64_t took_ns) { least_ns_ = std::min(least_ns_, took_ns); }
  void note_period(Clock::duration period) { period_s_ = std::min(period_s_, std::chrono::duration<double>(period).count()); }
  std::optional<Resumed> take_resumed() { return std::exchange(resumed_, std::nullopt); }
  void note_gathering(Clock::duration took) { gathering_.note(took); }

 private:
  const uint64_t number_;
  const std::vector<wire::Step*> path_;
  const bool is_steady_;
  std::optional<Resumed> resumed_;  // until it is known what carries it out
  Gathering gathering_;
  uint64_t least_ns_ = std::numeric_limits<uint64_t>::max();
  double period_s_ = std::numeric_limits<double>::infinity();
  uint64_t last_end_ = 0;
};

}  // namespace forebay::worker
