#include "stream/tracer.h"

#include <algorithm>
#include <utility>

#include "base/memory.h"
#include "base/settings.h"
#include "forebay/traces_as_bytes.h"

namespace forebay {
namespace {

using wire::Command;

constexpr uint64_t kSearchesMax = 3;     // for a loop, where the same steps come again and again
constexpr size_t kSegmentMax = 32768;
constexpr size_t kSegmentMin = 16;       // a shorter loop is taken several times over

}  // namespace

void Tracer::settle() {
  if (following_ == 0) return;
  auto& out = frames_.open();
  out.command(Command::kFollow);
  out.varint(following_);
  following_ = 0;
}

void Tracer::step(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds) {
  wire::Step* step = traces_.find(key);
  if (step == nullptr) return step_in_full(key, words, kinds);
  note(key, words, kinds);
  traces_.compare(*step, words, changes_);
  const bool frees_expected = frees_as_expected(*step);
  if (frees_expected && changes_.empty() && step == traces_.likely()) {
    ++following_;
    ++expected_steps_;
  } else {
    settle();
    if (!frees_expected) say_unexpected_frees(*step);
    put_step(*step);
  }
  take(*step, words);
}

void Tracer::step_in_full(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds) {
  note(key, words, kinds);
  settle();
  say_frees();
  auto& out = frames_.open();
  out.command(wire::is_allocation(key) ? Command::kAllocate : Command::kCall);
  const size_t first = wire::is_allocation(key) ? 1 : 0;
  if (first == 1) out.varint(words[0]);
  out.varint(wire::key_value(key));
  for (size_t index = first; index < words.size(); ++index) wire::put_word(out, kinds[index], words[index]);
  const wire::Words freed = std::exchange(said_frees_, {});
  came(traces_.come(key, kinds, words, freed));
}

// The worker was told of the step, or will be as one of those it expects.
void Tracer::take(wire::Step& step, const wire::Words& words) {
  said_frees_.insert(said_frees_.end(), unsaid_frees_.begin(), unsaid_frees_.end());
  traces_.take(step, words, said_frees_);
  said_frees_.clear();
  unsaid_frees_.clear();
  came(&step);
}

void Tracer::put_step(const wire::Step& step) {
  auto& out = frames_.open();
  out.command(Command::kStep);
  out.varint(&step == traces_.likely() ? 0 : traces_.number_of(step) + 1);
  wire::put_changes(out, changes_);
}

bool Tracer::frees_as_expected(const wire::Step& step) {
  if (said_frees_.empty()) return traces_.expects_freed(step, unsaid_frees_);
  wire::Words frees(said_frees_);
  frees.insert(frees.end(), unsaid_frees_.begin(), unsaid_frees_.end());
  return traces_.expects_freed(step, frees);
}

void Tracer::say_unexpected_frees(const wire::Step& step) {
  say_frees();
  if (traces_.expects_more_freed(step, said_frees_)) put_frees({});  // which do not come
}

void Tracer::say_frees() {
  if (unsaid_frees_.empty()) return;
  settle();
  put_frees(unsaid_frees_);
  said_frees_.insert(said_frees_.end(), unsaid_frees_.begin(), unsaid_frees_.end());
  unsaid_frees_.clear();
}

void Tracer::put_frees(const wire::Words& storages) {
  auto& out = frames_.open();
  out.command(Command::kFree);
  out.varint(storages.size());
  for (const uint64_t storage : storages) out.varint(storage);
}

void Tracer::cut() {
  if (round_.empty()) find_rounds();
  end_segment();
  round_.clear();
}

void Tracer::end_segment() {
  settle();
  if (traces_.full()) {
    put_cut(true);
    traces_.clear();
  }
  traces_.cut();
  course_.clear();
  path_.clear();
}

void Tracer::put_cut(bool forget) {
  settle();
  auto& out = frames_.open();
  out.command(Command::kCut);
  out.u8(forget);
}

void Tracer::clear() {
  settle();
  traces_.clear();
  course_.clear();
  path_.clear();
  round_.clear();
}

void Tracer::reset() {
  traces_.reset();
  course_.clear();
  path_.clear();
  round_.clear();
  following_ = 0;
  said_frees_.clear();
  unsaid_frees_.clear();
}

void Tracer::put_traces(std::vector<uint8_t>& frames) const {
  wire::Writer tree;
  tree.varint(said_frees_.size());
  for (const uint64_t storage : said_frees_) tree.varint(storage);
  wire::TracesAsBytes::put(tree, traces_);
  for (size_t done = 0, size = 1; size > 0; done += size) {  // the last part is empty
    size = std::min(wire::kChunkBytesMax, tree.size() - done);
    const auto frame = framed([&](wire::Writer& out) {
      out.command(Command::kTraces);
      out.varint(size);
      out.raw(tree.bytes().data() + done, size);
    });
    frames.insert(frames.end(), frame.begin(), frame.end());
  }
}

bool Tracer::is_long() const { return course_.size() >= kSegmentMax || course_.words() >= wire::kStepWordsMax; }

void Tracer::note(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds) {
  const auto use = memory_use(device_);
  course_.note(key, words, kinds, traces_.base(), {use.alive, use.allocated});
}

// After a step: cuts where a program that gives no other reason to goes round in a loop.
void Tracer::came(wire::Step* step) {
  path_.push_back(step);
  bool ends = step != nullptr && step->ends;
  if (!round_.empty()) {
    ends |= ends_round(step);
  } else if (!ends) {
    ends = finds_loop(step);
  }
  if (!ends && (!is_long() || !round_.empty())) return;
  put_cut(false);
  end_segment();
}

// At a cut: what lies between two may be rounds of a loop that were too few to be known on the way, as of a program that waits every few steps. For
// libraries, of which each is made of one round.
void Tracer::find_rounds() {
  if (!uses_libraries() || path_.empty() || path_.back() == nullptr || path_.back()->came > kSearchesMax) return;
  if (const auto found = course_.rounds()) end_at_first_round(*found);
}

// When the program comes this way again.
void Tracer::end_at_first_round(const Repetition& found) {
  size_t first = found.first;
  while (first < kSegmentMin) first += found.period;
  if (path_[first - 1] != nullptr) path_[first - 1]->ends = true;
}

// Of a loop that was found: the rest of the round that it was found in, and the next one, which is a segment.
bool Tracer::ends_round(wire::Step* step) {
  if (course_.key(course_.size() - 1) != round_[rounded_]) {
    round_.clear();
    return false;
  }
  if (++rounded_ < round_.size()) return false;
  rounded_ = 0;
  if (round_is_segment_) {
    if (step != nullptr) step->ends = true;
    round_.clear();
  }
  round_is_segment_ = true;
  return true;
}

// Whether a round of a loop, which is known from now on, ends with this step.
bool Tracer::finds_loop(const wire::Step* step) {
  const size_t length = course_.size();
  const auto sought = evidence_sought(length, uses_libraries());
  const bool searches = sought && (step == nullptr || step->came <= kSearchesMax);
  if (!searches && !is_long()) return false;
  const auto found = course_.repetition(!is_long(), sought.value_or(Evidence{}));
  if (!found) return false;
  const size_t rounds = (kSegmentMin + found->period - 1) / found->period;
  for (size_t index = 0; index < rounds * found->period; ++index) round_.push_back(course_.key(found->boundary + index % found->period));
  end_at_first_round(*found);
  rounded_ = (length - found->boundary) % found->period;
  round_is_segment_ = rounded_ == 0;
  return round_is_segment_;
}

}  // namespace forebay
