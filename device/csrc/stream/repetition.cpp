#include "stream/repetition.h"

#include <algorithm>
#include <bit>

namespace forebay {
namespace {

constexpr size_t kLookBackPeriods = 16;  // for how little was alive
constexpr size_t kLookBackSteps = 1024;  // and so many steps more
constexpr size_t kSearchFrom = 2048;
constexpr size_t kSearchEvery = 1024;
constexpr size_t kSearchForLibraryFrom = 128;  // and at each power of two
constexpr Evidence kEvidenceForLibrary{64, 3};

// For each place, how many values from there on are those from the beginning on (the Z function; Gusfield, Algorithms on Strings, 1.4).
template <typename At>
std::vector<size_t> prefix_matches(size_t size, const At& at) {
  std::vector<size_t> found(size, 0);
  found[0] = size;
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

}  // namespace

std::optional<Evidence> evidence_sought(size_t steps, bool for_library) {
  if (steps >= kSearchFrom) return steps % kSearchEvery == 0 ? std::optional(Evidence{}) : std::nullopt;
  return for_library && steps >= kSearchForLibraryFrom && std::has_single_bit(steps) ? std::optional(kEvidenceForLibrary) : std::nullopt;
}

bool Course::has_less(const Moment& one, const Moment& other) {
  return one.alive.storages != other.alive.storages ? one.alive.storages < other.alive.storages : one.alive.bytes < other.alive.bytes;
}

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

std::optional<Repetition> Course::repetition(bool settled, Evidence evidence) const {
  const auto like_end = repeated_ends();
  std::vector<size_t> like_beginning;
  for (size_t period = 1; (1 + evidence.rounds) * period <= size(); ++period) {
    const size_t repeated = std::max(evidence.rounds * period, evidence.steps);
    if (like_end[period] < repeated || !keeps_storages(period, repeated)) continue;
    if (like_beginning.empty()) like_beginning = repeated_beginnings();
    const size_t from = size() - like_end[period] - period;
    for (const size_t boundary : boundaries(period, like_beginning)) {
      const Repetition found{period, boundary, from + (boundary - from) % period};
      if (!settled || leaves_nothing(found)) return found;
    }
  }
  return std::nullopt;
}

std::optional<Repetition> Course::rounds() const {
  const auto like_beginning = repeated_beginnings();
  for (size_t period = 1; 2 * period <= size(); ++period) {
    const size_t repeated = size() - period;
    if (size() % period != 0 || like_beginning[period] < repeated || repeated < kEvidenceForLibrary.steps) continue;
    const Repetition found{period, size() - period, 0};
    if (keeps_storages(period, repeated) && leaves_nothing(found)) return found;
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

// Where a round may begin, of the last but one: as the segment did, or where the least is alive.
std::vector<size_t> Course::boundaries(size_t period, const std::vector<size_t>& like_beginning) const {
  const auto round = static_cast<std::ptrdiff_t>(size() - 2 * period), next = round + static_cast<std::ptrdiff_t>(period);
  std::vector<size_t> found;
  const auto likest = std::max_element(like_beginning.begin() + round, like_beginning.begin() + next);
  if (2 * *likest >= period) found.push_back(static_cast<size_t>(likest - like_beginning.begin()));
  found.push_back(static_cast<size_t>(std::min_element(moments_.begin() + round, moments_.begin() + next, has_less) - moments_.begin()));
  return found;
}

// Whether as much is alive where a round begins as when the first one did, and as at the segment's beginning or at the least since. A round
// may keep one storage, such as its loss.
bool Course::leaves_nothing(const Repetition& found) const {
  const size_t back = kLookBackPeriods * found.period + kLookBackSteps;
  const auto from = back < size() ? moments_.end() - static_cast<std::ptrdiff_t>(back) : moments_.begin();
  const auto has_less_bytes = [](const Moment& one, const Moment& other) { return one.alive.bytes < other.alive.bytes; };
  const auto [emptiest, fullest] = std::minmax_element(from, moments_.end(), has_less_bytes);
  const int64_t bytes = (fullest->alive.bytes - emptiest->alive.bytes) / 8;
  const auto storages = static_cast<int64_t>(size() / found.period);
  const auto exceeds = [&](const Alive& one, const Alive& other) { return one.storages > other.storages + storages || one.bytes > other.bytes + bytes; };
  const Alive& now = moments_[found.boundary].alive;
  if (exceeds(moments_[found.first].alive, now)) return false;
  return !exceeds(now, moments_.front().alive) || !exceeds(now, std::min_element(from, moments_.end(), has_less)->alive);
}

}  // namespace forebay
