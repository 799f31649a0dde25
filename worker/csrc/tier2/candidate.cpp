#include "tier2/candidate.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

namespace forebay::worker {

namespace {

// The one that so large a part of the others does not reach.
double quantile_of(std::vector<double> values, double part) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * part);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

void Candidate::describe(Outline outline) {
  outline_ = std::move(outline);
  state_ = State::kAwaiting;
  due_ = false;
  why_ = "no library was made of it yet";
}

void Candidate::widen(WordPlaces changing) {
  if (state_ != State::kAwaiting) return;
  changing_ = std::move(changing);
  outline_.reset();
  state_ = State::kDescribing;
}

bool Candidate::is_due(uint64_t took_ns, uint64_t due_ns) {
  took_ns_ += took_ns;
  if (due_ || state_ != State::kAwaiting || took_ns_ < due_ns) return false;
  why_ = "its library is being made";
  return due_ = true;
}

void Candidate::take(std::shared_ptr<Library> library, std::string note, bool is_shared, std::optional<double> took) {
  if (state_ != State::kAwaiting) return;
  library_ = std::move(library);
  note_ = std::move(note);
  shared_ = is_shared;
  arrive();
  timed_ = trusted_ = took.has_value();
  takes_ = took.value_or(0);
}

void Candidate::arrive() {
  timed_ = trusted_ = false;
  state_ = State::kArrived;
  why_ = "tier 1 is timed with all threads and with one less, before its library is";
}

void Candidate::prove(bool with_fewer) {
  turns_ = with_fewer ? 3 : 2;
  state_ = State::kProving;
  proofs_ = kProofs;
  why_ = "its library is being held against tier 1";
}

void Candidate::await_own(const std::string& fault) {
  library_.reset();
  shared_ = false;
  forget_times();
  timed_ = false;
  due_ = false;
  state_ = State::kAwaiting;
  why_ = "no library was made for its size alone yet, and that for several " + fault;
}

void Candidate::take(std::vector<Part> parts, int64_t bytes) {
  parts_ = std::move(parts);
  graph_bytes_ = bytes;
  what_ = "graph";
  state_ = State::kProving;
  proofs_ = proved_ ? 1 : kProofs;
  why_ = "its graph is being held against tier 1";
}

void Candidate::exclude(size_t step, std::string why) {
  excluded_.insert(step);
  why_excluded_ = std::move(why);
}

void Candidate::record_again(const std::string& why) {
  drop_graphs();
  if (++recordings_ >= kRecordingsMax) return stay("it was recorded again and again: " + (why_excluded_.empty() ? why : why_excluded_));
  state_ = State::kDescribing;
  why_ = why;
}

void Candidate::drop_graphs() {
  if (parts_.empty()) return;
  parts_.clear();
  graph_bytes_ = 0;
  forget_times();
  state_ = State::kDescribing;
  why_ = "its tensors were moved";
}

void Candidate::stay(std::string why) {
  state_ = State::kStaying;
  why_ = std::move(why);
  if (!library_) outline_.reset();  // else it tells what changes in segments of other sizes
  library_.reset();
  parts_.clear();
  graph_bytes_ = 0;
}

void Candidate::proved() {
  if (--proofs_ > 0) return;
  proved_ = true;
  served_ = 0;
  ended_.reset();
  if (timed_) return serve();
  state_ = library_ ? State::kWeighing : State::kTiming;  // a graph is always lighter to hand over
  why_ = std::string("its ") + what_ + " is timed against tier 1";
}

void Candidate::serve() {
  char text[100];
  std::snprintf(text, sizeof(text), "its %s takes %.2f of the time of tier 1", what_, takes_);
  why_ = text + (note_.empty() ? "" : "; " + note_);
  state_ = State::kServing;
}

void Candidate::widen() {
  if (widenings_++ >= kWidenings) return stay("its numbers change again and again");
  library_.reset();
  shared_ = false;
  outline_.reset();
  timed_ = false;
  state_ = State::kDescribing;
  why_ = "numbers changed that had been constant";
}

void Candidate::came(Clock::time_point now, std::optional<Clock::time_point> others, bool as_planned) {
  auto before = std::exchange(ended_, now);
  if (before && others) before = std::max(*before, *others);
  if (std::exchange(whole_, false) && as_planned) strays_ = 0;
  if (state_ == State::kServing && ++served_ % kProveEvery == 0) {
    if (trusted_) return arrive();
    state_ = State::kProving;
    proofs_ = 1;
  }
  if (state_ == State::kTiming && as_planned && before) note_time(std::chrono::duration<double>(now - *before).count());
}

void Candidate::gathered(Clock::duration took) {
  gathered_ = {took, gathered_[0]};
  whole_ = true;
}

Clock::duration Candidate::gathering() const {
  const auto shorter = std::min(gathered_[0], gathered_[1]);
  return shorter < kGatheringMin ? Clock::duration{} : shorter;
}

void Candidate::took(double seconds) {
  if (state_ == State::kWeighing) note_time(seconds);
}

// By turns as a whole, since a program may wait for its device every few comings. The first coming is not counted: what came before was the
// other's.
void Candidate::note_time(double seconds) {
  if (comings_ % kTurn != 0) seconds_ += seconds;
  if (comings_ % kTurn == kTurn - 1) times_[static_cast<size_t>(turn())].push_back(std::exchange(seconds_, 0));
  ++comings_;
  if (comings_ % (kTurn * turns_) != 0) return;
  const size_t turns = times_[0].size();
  if (turns >= kTurnsMin || (turns >= kTurnsFew && is_clearly_slower())) decide();
}

// Whether tier 2 is slower in each of its turns than tier 1 in any.
bool Candidate::is_clearly_slower() const {
  double sum = 0;
  for (const auto& times : times_) sum = std::accumulate(times.begin(), times.end(), sum);
  if (sum < kClearSeconds) return false;
  const double longest = *std::max_element(times_[0].begin(), times_[0].end());
  return std::all_of(times_.begin() + 1, times_.begin() + turns_, [&](const auto& times) { return *std::min_element(times.begin(), times.end()) > longest * kClear; });
}

void Candidate::forget_times() {
  for (auto& times : times_) times.clear();
  comings_ = 0;
  seconds_ = 0;
  ended_.reset();
}

void Candidate::strayed() {
  ended_.reset();
  whole_ = false;
  if (++strays_ > kStraysMax && state_ != State::kStaying) stay("its program pauses within it, leaves it, or computes indices that lead nowhere, too often");
}

void Candidate::decide() {
  // The median; where threads wait for one from which the program's recording takes a processor, what they take in turns without that
  const double part = turns_ > 2 ? kUndisturbed : kMiddle;
  double tier_2 = quantile_of(times_[1], part);
  if (turns_ > 2) tier_2 = std::min(tier_2, quantile_of(times_[2], part));
  const double ratio = tier_2 / quantile_of(times_[0], part);
  const bool weighed = state_ == State::kWeighing;
  forget_times();
  if (ratio > (weighed ? kLighter : kSlower)) {
    char text[100];
    std::snprintf(text, sizeof(text), "its %s takes %.2f of the %s of tier 1", what_, ratio, weighed ? "working time" : "time from end to end");
    if (library_ && !is_shared()) verdict_ = Verdict{};
    if (!is_shared()) return stay(text);
    declined_ = text;
    return await_own("gains too little");
  }
  if (weighed) {
    state_ = State::kTiming;
    return;
  }
  timed_ = true;
  takes_ = ratio;
  if (library_) verdict_ = Verdict{takes_};
  serve();
}

}  // namespace forebay::worker
