#include "tier2/threads.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace forebay::worker {

namespace {

// Without the longest, which something else on this host may have held up. Threads that wait for each other take some turns long: a median
// would not tell.
double mean_of(const std::vector<double>& turns) {
  const double sum = std::accumulate(turns.begin(), turns.end(), 0.0);
  return (sum - *std::max_element(turns.begin(), turns.end())) / static_cast<double>(turns.size() - 1);
}

}  // namespace

bool takes_all_processors(int threads) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  return threads > 1 && ::sched_getaffinity(0, sizeof(usable), &usable) == 0 && threads >= CPU_COUNT(&usable);
}

int Threads::ended(const wire::Step& end, By by, Clock::time_point now, std::chrono::nanoseconds worked) {
  if (segments_.size() >= kSegmentsMax && !segments_.count(&end)) forget();
  Segment& segment = segments_[&end];
  const auto before = std::exchange(ended_, now);
  const auto worked_before = std::exchange(worked_, worked);
  segment.is_by(by);
  if (by != By::kCompared && before && expected_ == &end) {
    const std::chrono::duration<double> took = now - *before, waited = took - (worked - worked_before);
    segment.came(took.count(), waited.count());
  } else if (by != By::kCompared) {
    segment.strayed();
  }
  if (before_ != nullptr) before_->next = &end;
  before_ = &segment;
  expected_ = segment.next;
  const auto next = segments_.find(expected_);
  return next != segments_.end() && next->second.takes_fewer() ? most_ - 1 : most_;
}

bool Threads::is_settled(const wire::Step& end) const {
  const auto found = segments_.find(&end);
  return found != segments_.end() && found->second.is_settled();
}

void Threads::forget() {
  segments_.clear();
  before_ = nullptr;
  expected_ = nullptr;
  ended_.reset();
}

void Threads::Segment::is_by(By by) {
  if (by == By::kCompared) {
    if (!is_settled()) settle(fewer_);
  } else if (by != std::exchange(by_, by)) {
    kept_ = kKept;
    try_again();
  }
}

void Threads::Segment::came(double seconds, double waited) {
  if (is_settled()) {
    if (--left_ == 0) try_again();
    return;
  }
  if (is_pause(seconds, waited)) {  // the turn begins anew
    comings_ -= comings_ % kTurn;
    seconds_ = 0;
    return strayed();
  }
  if (comings_ % kTurn != 0) seconds_ += seconds;
  if (comings_ % kTurn == kTurn - 1) times_[is_fewers_turn()].push_back(std::exchange(seconds_, 0));
  ++comings_;
  if (comings_ % kTurn == 0) decide();
}

void Threads::Segment::strayed() {
  if (!is_settled() && ++wasted_ > kWastedMax) settle(false);
}

bool Threads::Segment::is_pause(double seconds, double waited) {
  shortest_ = std::min(shortest_, seconds);
  return waited > kPause && waited > kFar * shortest_;
}

void Threads::Segment::try_again() {
  left_ = 0;
  comings_ = 0;
  seconds_ = 0;
  shortest_ = std::numeric_limits<double>::infinity();
  wasted_ = 0;
  for (auto& times : times_) times.clear();
}

void Threads::Segment::decide() {
  const auto& [all, fewer] = times_;
  if (all.size() == 1 && fewer.empty() && all.front() > kTurnMax) return settle(false);
  if (fewer.size() < kTurnsFew || fewer.size() < all.size()) return;
  const double ratio = mean_of(fewer) / mean_of(all);
  if (fewer.size() >= kTurns || ratio > kClear || ratio < 1 / kClear) settle(ratio < kQuicker);
}

void Threads::Segment::settle(bool fewer) {
  fewer_ = fewer;
  left_ = kept_;
  kept_ = std::min(2 * kept_, kKeptMax);
}

}  // namespace forebay::worker
