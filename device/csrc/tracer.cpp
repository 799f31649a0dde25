#include "tracer.h"

#include <algorithm>
#include <utility>

#include "stream.h"

namespace forebay {
namespace {

using wire::Command;

// A program that neither reads nor uploads for so many calls may be a loop: its repetition is looked for at each doubling.
constexpr size_t kSearchFrom = 1024;
constexpr size_t kSegmentMax = 8192;
constexpr size_t kSegmentMin = 256;  // a shorter repetition is taken several times over

}  // namespace

void Tracer::settle() {
  if (following_ == 0) return;
  auto& out = stream_.frame();
  out.command(Command::kFollow);
  out.varint(following_);
  following_ = 0;
}

void Tracer::step(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds) {
  wire::Step* step = traces_.find(key);
  if (step == nullptr) return step_in_full(key, words, kinds);
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
  settle();
  say_frees();
  auto& out = stream_.frame();
  out.command(wire::is_allocation(key) ? Command::kAllocate : Command::kCall);
  const size_t first = wire::is_allocation(key) ? 1 : 0;
  if (first == 1) out.varint(words[0]);
  out.varint(wire::key_value(key));
  for (size_t index = first; index < words.size(); ++index) wire::put_word(out, kinds[index], words[index]);
  const wire::Words freed = std::exchange(said_frees_, {});
  count(traces_.come(key, kinds, words, freed));
}

// The worker was told of the step, or will be as one of those it expects.
void Tracer::take(wire::Step& step, const wire::Words& words) {
  said_frees_.insert(said_frees_.end(), unsaid_frees_.begin(), unsaid_frees_.end());
  traces_.take(step, words, said_frees_);
  said_frees_.clear();
  unsaid_frees_.clear();
  count(&step);
}

void Tracer::put_step(const wire::Step& step) {
  auto& out = stream_.frame();
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
  auto& out = stream_.frame();
  out.command(Command::kFree);
  out.varint(storages.size());
  for (const uint64_t storage : storages) out.varint(storage);
}

void Tracer::cut() {
  settle();
  if (traces_.full()) {
    put_cut(true);
    traces_.clear();
  }
  traces_.cut();
  keys_.clear();
  repeats_in_ = 0;
}

void Tracer::put_cut(bool forget) {
  settle();
  auto& out = stream_.frame();
  out.command(Command::kCut);
  out.u8(forget);
}

void Tracer::clear() {
  settle();
  traces_.clear();
  keys_.clear();
  repeats_in_ = 0;
}

void Tracer::reset() {
  traces_.reset();
  keys_.clear();
  repeats_in_ = 0;
  following_ = 0;
  said_frees_.clear();
  unsaid_frees_.clear();
}

// After a step: cuts where a program that gives no other reason to repeats itself.
void Tracer::count(wire::Step* step) {
  keys_.push_back(step == nullptr ? 0 : step->key);
  const size_t length = keys_.size();
  bool ends = step != nullptr && step->ends;
  if (repeats_in_ > 0 && --repeats_in_ == 0) {
    ends = true;
    if (step != nullptr) step->ends = true;
  }
  size_t period = 0;
  if (!ends && repeats_in_ == 0 && length >= kSearchFrom && (length & (length - 1)) == 0) period = repetition();
  if (!ends && period == 0 && length < kSegmentMax) return;
  put_cut(false);
  cut();
  repeats_in_ = period == 0 ? 0 : (kSegmentMin + period - 1) / period * period;
}

// How many steps lie between a step of this segment and the same one before, all through its second half; 0 if none.
size_t Tracer::repetition() const {
  const size_t half = keys_.size() / 2;
  for (size_t period = 1; period <= half; ++period) {
    if (std::equal(keys_.begin() + static_cast<std::ptrdiff_t>(half), keys_.end(), keys_.begin() + static_cast<std::ptrdiff_t>(half - period))) return period;
  }
  return 0;
}

}  // namespace forebay
