#include "repetition.h"

#include <algorithm>

namespace forebay {
namespace {

constexpr size_t kRepeatedMin = 1024;   // steps that are to come again, of shorter periods too
constexpr size_t kLookBackPeriods = 16;  // for how little was alive

// For each place, how many values from there on are those from the beginning on (the Z function; Gusfield, Algorithms on Strings, 1.4).
template <typename At>
std::vector<size_t> prefix_matches(size_t size, const At& at) {
  std::vector<size_t> found(size, 0);
  for (size_t index = 1, left = 0, right = 0; index < size; ++index) {
    size_t length = index < right ? std::min(right - index, found[index - left]) : 0;
    while (index + length < size && at(length) == at(index + length)) ++length;
    found[index] = length;
    if (index + length > right) {
      left = index;
      right = index + length;
    }
  }
  return found;
}

bool is_less(const Alive& one, const Alive& other) { return one.storages != other.storages ? one.storages < other.storages : one.bytes < other.bytes; }

}  // namespace

void Course::note(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds, uint64_t base, Alive alive) {
  uint64_t newest = moments_.empty() ? base : newest_;
  moments_.push_back({key, newest, storages_.size(), alive});
  for (size_t index = 0; index < words.size(); ++index) {
    if (kinds[index] == wire::Word::kStorage) storages_.push_back(words[index]);
    if (kinds[index] == wire::Word::kNew) newest = words[index] + 1;
  }
  newest_ = newest;
}

void Course::clear() {
  moments_.clear();
  storages_.clear();
}

std::optional<Repetition> Course::repetition(bool settled) const {
  const auto like_end = repeated_ends();
  std::vector<size_t> like_beginning;
  for (size_t period = 1; 2 * period <= size(); ++period) {
    const size_t repeated = std::max(period, kRepeatedMin);
    if (like_end[period] < repeated || !keeps_storages(period, repeated)) continue;
    if (like_beginning.empty()) like_beginning = repeated_beginnings();
    const auto begins = boundary(period, like_beginning, settled);
    if (!begins) continue;
    const size_t repeats_from = size() - like_end[period] - period;
    return Repetition{period, *begins, repeats_from + (*begins - repeats_from) % period};
  }
  return std::nullopt;
}

// By how far back: how many of the last steps are those that came so much before them.
std::vector<size_t> Course::repeated_ends() const {
  return prefix_matches(size(), [this](size_t index) { return moments_[size() - 1 - index].key; });
}

// By place: how many steps from there on are those of the segment's beginning.
std::vector<size_t> Course::repeated_beginnings() const {
  return prefix_matches(size(), [this](size_t index) { return moments_[index].key; });
}

// Whether the last steps name the storages that were named a period before: half of those at least that are older than that. A batch
// may be another in each round.
bool Course::keeps_storages(size_t period, size_t count) const {
  size_t old = 0, same = 0;
  const auto begin = storages_.begin();
  for (size_t index = size() - count; index < size(); ++index) {
    const auto& now = moments_[index];
    const auto& before = moments_[index - period];
    const size_t end = index + 1 < size() ? moments_[index + 1].storages : storages_.size();
    for (size_t place = now.storages; place < end; ++place) {
      const uint64_t storage = begin[static_cast<std::ptrdiff_t>(place)];
      if (storage >= before.newest) continue;
      ++old;
      same += storage == begin[static_cast<std::ptrdiff_t>(before.storages + (place - now.storages))];
    }
  }
  return 2 * same >= old;
}

// Where a round of the last but one begins: as the segment did, or where the least is alive.
std::optional<size_t> Course::boundary(size_t period, const std::vector<size_t>& like_beginning, bool settled) const {
  const size_t round = size() - 2 * period;
  const auto likest = std::max_element(like_beginning.begin() + static_cast<std::ptrdiff_t>(round),
                                       like_beginning.begin() + static_cast<std::ptrdiff_t>(round + period));
  const size_t aligned = round == 0 ? 0 : static_cast<size_t>(likest - like_beginning.begin());
  const bool has_aligned = round == 0 || 2 * *likest >= period;
  const auto fewer = [](const Moment& one, const Moment& other) { return is_less(one.alive, other.alive); };
  const auto at = [this](size_t index) { return moments_.begin() + static_cast<std::ptrdiff_t>(index); };
  const auto least = static_cast<size_t>(std::min_element(at(round), at(round + period), fewer) - moments_.begin());
  if (!settled) return has_aligned ? aligned : least;

  const size_t back = kLookBackPeriods * period + kRepeatedMin;
  const auto from = at(back < size() ? size() - back : 0);
  const auto less_bytes = [](const Moment& one, const Moment& other) { return one.alive.bytes < other.alive.bytes; };
  const auto [emptiest, fullest] = std::minmax_element(from, moments_.end(), less_bytes);
  const int64_t spread = fullest->alive.bytes - emptiest->alive.bytes;
  const auto periods = static_cast<int64_t>(size() / period);
  // A round may leave a result behind that the program keeps, such as a loss.
  const auto is_back_at = [&](size_t index, const Alive& before) {
    const Alive& now = moments_[index].alive;
    return now.storages <= before.storages + periods && now.bytes <= before.bytes + spread / 8;
  };
  const Alive& low = std::min_element(from, moments_.end(), fewer)->alive;
  if (has_aligned && (is_back_at(aligned, moments_.front().alive) || is_back_at(aligned, low))) return aligned;
  if (is_back_at(least, low)) return least;
  return std::nullopt;
}

}  // namespace forebay
