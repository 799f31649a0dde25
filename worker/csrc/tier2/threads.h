// How many threads the kernels of a host take, whose processors their program needs, too.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include <forebay/traces.h>

#include "base/clock.h"

namespace forebay::worker {

// Whether as many as the host has processors, all of them may compute while a program of this host records: it waits for them then, and they
// for each other.
bool takes_all_processors(int threads);

// For each segment that comes again all threads, or one less: then the program's own thread has a processor to itself. Which is quicker from
// end to end is found by turns.
class Threads {
 public:
  // What carries a segment out, and what the host does beside it. Its times are others when that changes, and no one's while two are compared.
  enum class By { kSteps, kStepsBesideCompiler, kLibrary, kCompared };

  explicit Threads(int most) : most_(most) {}

  int most() const { return most_; }
  // A segment has come to its end now, which is that step; so long, in all, has the device been at work. Returns how many threads the kernels of
  // what probably follows are to take.
  int ended(const wire::Step& end, By by, Clock::time_point now, std::chrono::nanoseconds worked);
  // Whether what probably follows is a segment with this end.
  bool expects(const wire::Step& end) const { return expected_ == &end; }
  // Whether it is known how many the segment with this end is quicker with, or cannot be found.
  bool is_settled(const wire::Step& end) const;
  // The steps are gone.
  void forget();

 private:
  class Segment {
   public:
    const wire::Step* next = nullptr;  // what followed last

    bool is_settled() const { return left_ > 0; }
    bool takes_fewer() const { return is_settled() ? fewer_ : is_fewers_turn(); }
    // In so many seconds, and the device waited for the program in so many of them.
    void came(double seconds, double waited);
    // Not after what was expected, or after a pause.
    void strayed();
    // By something else than before it is tried again.
    void is_by(By by);

   private:
    static constexpr int kTurn = 7;             // comings; the first one is not counted, as what came before was the other's
    static constexpr size_t kTurnsFew = 6;      // of each, where it is clear which is quicker
    static constexpr size_t kTurns = 12;        // else
    static constexpr double kClear = 1.25;
    static constexpr double kQuicker = 0.97;    // than with all threads, at most
    static constexpr double kTurnMax = 1;       // in seconds: a program that records for milliseconds does not matter to one that takes longer
    static constexpr double kPause = 0.03;      // in seconds: the program did something else, as between two cells, if the device waited so long,
    static constexpr double kFar = 4;           // and so many times its shortest coming
    static constexpr int kWastedMax = 256;      // comings that were not counted: they differ by themselves, or other segments come between
    static constexpr uint64_t kKept = 1024;     // comings until it is tried again, at first
    static constexpr uint64_t kKeptMax = 1 << 18;

    bool is_fewers_turn() const { return comings_ / kTurn % 2 == 1; }
    bool is_pause(double seconds, double waited);
    void try_again();
    void decide();
    void settle(bool fewer);

    By by_ = By::kSteps;
    bool fewer_ = false;
    uint64_t left_ = 0;                         // comings for which that holds; none: it is tried
    uint64_t kept_ = kKept;
    int comings_ = 0;
    double seconds_ = 0;                        // of this turn
    double shortest_ = std::numeric_limits<double>::infinity();
    int wasted_ = 0;
    std::array<std::vector<double>, 2> times_;  // of turns in seconds: with all, with fewer
  };

  static constexpr size_t kSegmentsMax = 1024;

  int most_;
  std::unordered_map<const wire::Step*, Segment> segments_;  // by their ends
  Segment* before_ = nullptr;
  const wire::Step* expected_ = nullptr;  // the end of the one whose kernels take what was said
  std::optional<Clock::time_point> ended_;
  std::chrono::nanoseconds worked_{};
};

}  // namespace forebay::worker
