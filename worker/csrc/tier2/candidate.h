// A segment that came again, on its way to a library that serves it, or graphs on an accelerator (docs/reference/compiled.md).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <forebay/traces.h>

#include "base/clock.h"
#include "tier2/library.h"
#include "tier2/outline.h"
#include "tier2/partition.h"

namespace forebay::worker {

class Candidate {
 public:
  // What is to be done with the segment when it comes.
  enum class State { kDescribing, kAwaiting, kArrived, kProving, kWeighing, kTiming, kServing, kStaying };

  Candidate(uint64_t number, std::vector<wire::Step*> path) : number_(number), path_(std::move(path)) {}

  uint64_t number() const { return number_; }
  const std::vector<wire::Step*>& path() const { return path_; }
  State state() const { return state_; }
  const std::string& why() const { return why_; }
  Library& library() { return *library_; }
  const Outline& outline() const { return *outline_; }
  // It awaits a library, or had one.
  bool is_described() const { return outline_.has_value(); }

  // Of all ends of segments in its session, which one was its last.
  uint64_t last_end() const { return last_end_; }
  void ended_at(uint64_t end) { last_end_ = end; }

  // Whether its steps are to be held back until the last one, the next time.
  bool is_held() const { return state_ == State::kDescribing || state_ == State::kProving || state_ == State::kWeighing || by_tier_2(); }
  // Whether the library is to carry it out, or its graphs are, the next time.
  bool by_tier_2() const { return state_ == State::kServing || (is_timed() && is_tier_2s_turn()); }
  // With how many threads less than all the library is timed the next time; none where it is not.
  std::optional<int> threads_less() const { return is_timed() && is_tier_2s_turn() ? std::optional(turn() - 1) : std::nullopt; }
  // Whether a compiler may be at work on it.
  bool is_being_made() const { return state_ == State::kAwaiting && due_; }
  // Whether its library is held against tier 1, or timed.
  bool is_compared() const { return state_ == State::kProving || is_timed(); }

  void describe(Outline outline);
  // Numbers that changed in another session: until it has a library, it is described anew, so that they may.
  void widen(WordPlaces changing);
  const WordPlaces& changing() const { return changing_; }
  // While it is awaited: the device worked so long on it. True, once, where that makes it worth a library.
  bool is_due(uint64_t took_ns, uint64_t due_ns);
  // `is_shared`: it also serves segments that differ from this one in a size; the note says for which, or why it serves this one alone. `took`: of
  // tier 1's time, in a session before, where it was quicker. Then it serves once it is proved, and is timed after so many comings as it is proved
  // again.
  void take(std::shared_ptr<Library> library, std::string note, bool is_shared, std::optional<double> took);
  // Whether its library has arrived, and gained in a session before.
  bool gained_before() const { return state_ == State::kArrived && timed_; }
  // Its library has arrived, and tier 1 is carried out by as many threads as it is quicker with, if that can be known. The library is timed with all
  // threads, and `with_fewer` with one less, too.
  void prove(bool with_fewer);
  bool is_shared() const { return shared_; }
  // What is forgotten gives it away: to close one takes a while.
  std::shared_ptr<Library> give_library_away() { return std::move(library_); }
  // Its library, which is for several sizes, has a fault: it awaits one of its own.
  void await_own(const std::string& fault);
  // Why it awaits one of its own since it was timed; none where it does not, or was asked before.
  std::optional<std::string> take_declined() { return std::exchange(declined_, std::nullopt); }
  // What its library takes of tier 1's time, once that was found; where it is not quicker, nothing.
  struct Verdict {
    std::optional<double> takes;
  };
  std::optional<Verdict> take_verdict() { return std::exchange(verdict_, std::nullopt); }
  // The parts of its steps, recorded as graphs that keep so many bytes of the device.
  void take(std::vector<Part> parts, int64_t bytes);
  std::vector<Part>& parts() { return parts_; }
  int64_t graph_bytes() const { return graph_bytes_; }
  // A step was found not to be recordable.
  void exclude(size_t step, std::string why);
  const std::set<size_t>& excluded() const { return excluded_; }
  // Its graphs are of no use any more; so many times at most.
  void record_again(const std::string& why);
  // Their memory is given back. They are recorded again when the segment comes.
  void drop_graphs();
  // It is as tier 1 has it, for good.
  void stay(std::string why);
  // It was held against tier 1, and is the same.
  void proved();
  // Numbers changed that were constants: it is described anew, so that they may change; twice at most.
  void widen();
  // Its steps were held back, and all there after so long.
  void gathered(Clock::duration took);
  // How long that probably takes, at least; nothing where that is not worth a look.
  Clock::duration gathering() const;
  // While it is weighed: its kernels took so long, with all its steps there.
  void took(double seconds);
  // Whether the coming that ends now is one that a turn's time begins or ends with.
  bool bounds_turn() const { return state_ == State::kTiming && (comings_ % kTurn == 0 || comings_ % kTurn == kTurn - 1); }
  // It came to its end now; `as_planned`: by whom it was to be carried out. What it took is the time since it ended before, or since another one
  // did, where that is known: what that took is not its own.
  void came(Clock::time_point now, std::optional<Clock::time_point> others, bool as_planned);
  // Another segment, a program that pauses in the middle, or one whose indices lead nowhere.
  void strayed();

 private:
  static constexpr int kProofs = 3;
  static constexpr int kTurn = 7;               // comings
  static constexpr size_t kTurnsFew = 4;        // of each, before it is decided where all turns of tier 2 are that much longer than any of tier 1,
  static constexpr double kClear = 1.1;
  static constexpr double kClearSeconds = 1;    // and all took so long: what else a host does comes and goes
  static constexpr size_t kTurnsMin = 12;       // else
  static constexpr uint64_t kProveEvery = 1000;
  static constexpr int kWidenings = 2;
  static constexpr int kStraysMax = 16;
  static constexpr int kRecordingsMax = 8;
  static constexpr auto kGatheringMin = std::chrono::microseconds(200);
  static constexpr double kMiddle = 0.5;
  static constexpr double kUndisturbed = 0.25;
  static constexpr double kLighter = 0.95;      // of the time that tier 1 takes with all steps there, at most
  static constexpr double kSlower = 1.02;       // of the time from end to end, at most: a library begins when tier 1 may be half through

  bool is_timed() const { return state_ == State::kWeighing || state_ == State::kTiming; }
  // Whose turn it is: tier 1's, 0, or tier 2's, with all threads or with one less.
  int turn() const { return comings_ / kTurn % turns_; }
  bool is_tier_2s_turn() const { return turn() != 0; }
  void arrive();
  void serve();
  void note_time(double seconds);
  void forget_times();
  bool is_clearly_slower() const;
  void decide();

  uint64_t number_;
  std::vector<wire::Step*> path_;
  State state_ = State::kDescribing;
  std::string why_ = "it came once or twice";
  std::optional<Outline> outline_;
  WordPlaces changing_;
  std::shared_ptr<Library> library_;
  std::string note_;
  bool shared_ = false;
  std::optional<std::string> declined_;
  std::optional<Verdict> verdict_;
  std::vector<Part> parts_;
  int64_t graph_bytes_ = 0;
  std::set<size_t> excluded_;
  std::string why_excluded_;
  int recordings_ = 0;
  bool proved_ = false;
  const char* what_ = "library";
  uint64_t took_ns_ = 0;
  bool due_ = false;
  int widenings_ = 0;
  int proofs_ = 0;
  int turns_ = 2;
  int comings_ = 0;      // that were counted
  double seconds_ = 0;   // of this turn
  int strays_ = 0;       // in a row
  bool whole_ = false;   // its steps were held back this time until all were there
  uint64_t served_ = 0;
  uint64_t last_end_ = 0;
  bool timed_ = false;    // and gained
  double takes_ = 0;      // of tier 1's time, from end to end
  bool trusted_ = false;  // that was in a session before
  std::array<Clock::duration, 2> gathered_{};  // the last times
  std::optional<Clock::time_point> ended_;
  std::array<std::vector<double>, 3> times_;  // seconds of turns
};

}  // namespace forebay::worker
