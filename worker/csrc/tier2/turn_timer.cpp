#include "tier2/turn_timer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace forebay::worker {

namespace {

// The value that so large a part of the others does not reach.
double quantile_of(std::vector<double> values, double part) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * part);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

bool TurnTimer::note(double seconds) {
  if (runs_ % kTurn != 0) seconds_ += seconds;
  if (runs_ % kTurn == kTurn - 1) times_[static_cast<size_t>(turn())].push_back(std::exchange(seconds_, 0));
  ++runs_;
  if (runs_ % (kTurn * ways_) != 0) return false;
  const size_t turns = times_[0].size();
  return turns >= kTurnsMin || (turns >= kTurnsFew && is_clear());
}

bool TurnTimer::is_clear() const {
  double sum = 0;
  for (const auto& times : times_) sum = std::accumulate(times.begin(), times.end(), sum);
  if (sum < kClearSeconds) return false;
  const auto [shortest, longest] = std::minmax_element(times_[0].begin(), times_[0].end());
  const auto all_are = [&](const auto& holds) {
    return std::all_of(times_.begin() + 1, times_.begin() + ways_, [&](const auto& times) { return std::all_of(times.begin(), times.end(), holds); });
  };
  return all_are([most = *longest](double time) { return time > most * kClear; }) || all_are([least = *shortest](double time) { return time * kClear < least; });
}

// The median; if kernels wait for a thread from which the program's recording takes a processor, what turns take that are not disturbed by that.
double TurnTimer::ratio() const {
  const double part = ways_ > 2 ? kUndisturbed : kMiddle;
  double tier_2 = quantile_of(times_[1], part);
  if (ways_ > 2) tier_2 = std::min(tier_2, quantile_of(times_[2], part));
  return tier_2 / quantile_of(times_[0], part);
}

void TurnTimer::forget() {
  for (auto& times : times_) times.clear();
  runs_ = 0;
  seconds_ = 0;
}

}  // namespace forebay::worker
