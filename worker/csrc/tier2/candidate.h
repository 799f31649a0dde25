// A segment that repeats, on its way to a library that serves it, or to graphs on an accelerator (docs/reference/compiled.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <forebay/image.h>
#include <forebay/traces.h>

#include "base/clock.h"
#include "tier2/library.h"
#include "tier2/repeated_segment.h"
#include "tier2/specialization.h"
#include "tier2/partition.h"
#include "tier2/segment_state.h"
#include "tier2/turn_timer.h"

namespace forebay::worker {

// The parts of a segment's steps, recorded as graphs.
struct Graphs {
  std::vector<Part> parts;      // none before they are recorded
  int64_t bytes = 0;            // of the device, that the graphs keep
  std::set<size_t> excluded;    // steps that were found not to be recordable
  std::string why_excluded;     // of the last one
  int recordings = 0;           // so far

  void exclude(size_t step, std::string why) {
    excluded.insert(step);
    why_excluded = std::move(why);
  }
  void drop() {
    parts.clear();
    bytes = 0;
  }
};

class Candidate final : public RepeatedSegment {
 public:
  using State = SegmentState;

  using RepeatedSegment::RepeatedSegment;

  State state() const { return state_; }
  // Why it is not carried out by tier 2, or what is known of that; for whoever profiles.
  const std::string& why() const { return why_; }
  const std::shared_ptr<Library>& library() const { return library_; }
  const Specialization& specialization() const { return *specialization_; }
  // It awaits a library, or had one.
  bool is_described() const { return specialization_.has_value(); }
  Graphs& graphs() { return graphs_; }
  const TurnTimer& timer() const { return timer_; }

  // Whether its steps are to be deferred until the last one, in the next run.
  bool is_deferred() const { return state_ == State::kDescribing || state_ == State::kVerifying || state_ == State::kWeighing || by_tier_2(); }
  // Whether the library is to carry out the next run, or its graphs are.
  bool by_tier_2() const { return state_ == State::kServing || (is_timed(state_) && timer_.turn() != 0); }
  // With how many threads less than all the library is timed in the next run; none if it is not.
  std::optional<int> threads_less() const { return is_timed(state_) && timer_.turn() != 0 ? std::optional(timer_.turn() - 1) : std::nullopt; }
  // Whether a compiler may be at work on it.
  bool is_being_made() const { return state_ == State::kAwaiting && due_; }

  void describe(Specialization specialization);
  // Numbers that changed in another session: until it has a library, it is described anew, so that they may.
  void widen(WordPlaces changing);
  const WordPlaces& changing() const { return changing_; }
  // While it is awaited: the device worked so long on it. True, once, if that makes it worth a library.
  bool is_due(uint64_t took_ns, uint64_t due_ns);
  // `is_shared`: it also serves segments that differ from this one in a size; the note says for which, or why it serves this one alone. `took`: of
  // tier 1's time, in a session before, where it was quicker. It then serves as soon as it is verified; it is timed again after kVerifyEvery runs.
  void take(std::shared_ptr<Library> library, std::string note, bool is_shared, std::optional<double> took);
  // Whether its library gained in a session before.
  bool gained_before() const { return gain_.has_value(); }
  // Its library has arrived, and tier 1 is carried out by as many threads as it is quicker with, if that can be known. The library is timed with all
  // threads, and `with_fewer` with one less, too.
  void verify(bool with_fewer);
  // As verify, of one that is steady. Where another worker of the session had it serve, it serves at once.
  void adopt();
  // For an image of its session: how it is carried out when it comes next. `end`: the number of its last step.
  wire::ImageSegment resumable(uint64_t end) const;
  // While it is compared: the library's results stay, as they would have if it were not.
  bool keeps_library_results() const { return is_steady() && served_ > 0; }
  bool is_shared() const { return is_shared_; }
  // Its library, which is for several sizes, has a fault: it awaits one of its own.
  void await_own(const std::string& fault);
  // Its graphs are there.
  void recorded() { recorded("graph"); }
  // It is a pipeline, which an image has by such numbers, and goes on as another worker had it, if one had. `foretold`: what it takes of tier 1's time;
  // it serves then once it is verified, however long it takes.
  void staged(std::vector<uint64_t> pipeline, std::optional<double> foretold);
  // Its graphs, or its pipeline, are of no use any more; so many times at most.
  void record_again(const std::string& why);
  // Their memory is given back. They are recorded again in the next run.
  void drop_graphs();
  // It is as tier 1 has it, for good.
  void stay(std::string why);
  // It was compared with tier 1, and gives the same results.
  void verified();
  // Numbers changed that were constants: it is described anew, so that they may change; twice at most.
  void widen();
  // Its steps were deferred, and all there after so long.
  void gathered(Clock::duration took);
  // While it is weighed: its kernels took so long, with all its steps there.
  void took(double seconds);
  // It came to its end now; `as_planned`: by whom it was to be carried out. What it took is the time since it ended before, or since another one
  // did, if that is known: what that took is not its own.
  void ended(Clock::time_point now, std::optional<Clock::time_point> others, bool as_planned);
  // Another segment came, its program paused in the middle, or its indices are out of bounds.
  void mismatched();

  // What was found by timing, and is to be told once.
  struct Decision {
    std::string declined;         // why it awaits a library of its own; empty if it does not
    bool is_timed = false;        // what its own library takes of tier 1's time is known
    std::optional<double> ratio;  // that; none if it is not quicker
  };
  std::optional<Decision> take_decision() { return std::exchange(decision_, std::nullopt); }

 private:
  static constexpr int kVerifications = 3;
  static constexpr uint64_t kVerifyEvery = 1000;
  static constexpr int kWidenings = 2;
  static constexpr int kMismatchesMax = 16;
  static constexpr int kRecordingsMax = 8;
  static constexpr double kLighter = 0.95;      // of the time that tier 1 takes with all steps there, at most
  static constexpr double kSlower = 1.02;       // of the time from end to end, at most: a library begins when tier 1 may be half through

  // What tier 2 takes of tier 1's time, from end to end.
  struct Gain {
    double ratio;
    bool is_from_before;  // found in another session
  };
  void move(SegmentEvent event) { state_ = after(state_, event); }
  void recorded(const char* tier_2);
  void serve(SegmentEvent event);
  void decide();

  State state_ = State::kDescribing;
  std::string why_ = "it came once or twice";
  std::optional<Specialization> specialization_;    // from kAwaiting on, and while tier 2 has been given up; never of graphs
  WordPlaces changing_;               // numbers that are described as changing
  std::shared_ptr<Library> library_;  // mutually exclusive with graphs
  std::string note_;                  // of the library
  bool is_shared_ = false;            // the library is for several sizes
  Graphs graphs_;
  std::vector<uint64_t> pipeline_;    // none where a library or graphs carry it out
  const char* tier_2_ = "library";    // what carries it out in place of tier 1, in a word
  bool was_verified_ = false;         // by graphs that may be gone
  uint64_t took_ns_ = 0;              // of the device, in all runs while a library is awaited
  bool due_ = false;                  // that made it worth a library
  int widenings_ = 0;
  int verifications_left_ = 0;
  TurnTimer timer_;
  std::optional<Gain> gain_;          // none before it is timed
  std::optional<Decision> decision_;
  int mismatches_ = 0;                // in a row
  bool is_whole_ = false;             // its steps were deferred this time until all were there
  uint64_t served_ = 0;               // runs since it was verified
  std::optional<Clock::time_point> ended_;
};

}  // namespace forebay::worker
