// What both sides remember of the calls that came before, so that calls which come again need not be sent again.
//
// A segment is what lies between two cuts (docs/wire.md says which commands cut). The segments are kept as a tree: a path from the
// root is how some segments began. A step of the tree keeps the words that its call bound last, and so expects what it will bind
// next: the same values, the same storages or storages that moved along with the numbering of new ones, the storages freed just
// before. Client and worker run this same code over the same commands, so what is as expected takes no bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "wire.h"

namespace forebay::wire {

struct Slot {
  uint64_t last = 0;
  Word kind = Word::kNumber;
  bool moves = false;  // a storage whose id grows as the ids of new storages do
  bool varies = false;  // a number that came otherwise than the time before
};

// A call of a template, or an ALLOCATE.
struct Step {
  uint64_t key = 0;
  uint64_t base = 0;        // the segment's, when this step was last taken
  std::vector<Slot> slots;
  std::vector<Slot> freed;  // storages freed between the step before and this one
  std::vector<Step*> next;
  Step* likely = nullptr;   // the one of `next` that was taken last
  uint64_t came = 0;        // how many times
  uint64_t ended = 0;       // how many times a segment ended with it
  bool ends = false;        // the client cuts here: a repetition of its own ended
};

// A word that is not as expected.
struct Change {
  size_t index;
  uint64_t word;
};

using Words = std::vector<uint64_t>;

// Changes as they are written: each says how far its index is from the one before, and its word, shortly where it is the one before again.
inline void put_changes(Writer& out, const std::vector<Change>& changes) {
  constexpr uint64_t kNarrowMax = uint64_t{1} << 56;  // larger words are shorter as eight bytes
  out.varint(changes.size());
  Change before{0, 0};
  for (const auto& change : changes) {
    const bool same = &change != &changes.front() && change.word == before.word;
    const bool wide = change.word > kNarrowMax;
    out.varint((change.index - before.index) << 2 | (same ? 2 : wide ? 1 : 0));
    if (!same) wide ? out.u64(change.word) : out.varint(change.word);
    before = change;
  }
}

inline void get_changes(Reader& in, size_t words, std::vector<Change>& changes) {
  changes.clear();
  Change now{0, 0};
  for (size_t left = in.count(words, "the number of changes"); left > 0; --left) {
    const uint64_t head = in.varint();
    const uint64_t form = head & 3;
    now.index += static_cast<size_t>(head >> 2);
    if (head >> 2 >= words || now.index >= words || (!changes.empty() && head >> 2 == 0)) throw WireError("a change of a word that a step does not have");
    if (form == 3 || (form == 2 && changes.empty())) throw WireError("a change of unknown form");
    if (form != 2) now.word = form == 1 ? in.u64() : in.varint();
    changes.push_back(now);
  }
}

constexpr uint64_t call_key(uint64_t number) { return number << 1; }
constexpr uint64_t allocation_key(uint64_t bytes) { return bytes << 1 | 1; }
constexpr bool is_allocation(uint64_t key) { return key & 1; }
constexpr uint64_t key_value(uint64_t key) { return key >> 1; }

class Traces {
 public:
  friend struct TracesAsBytes;

  Traces() = default;
  Traces(const Traces&) = delete;  // steps point at each other
  Traces& operator=(const Traces&) = delete;

  // The next segment begins.
  void cut() {
    if (here_ != nullptr) ++here_->ended;
    here_ = &root_;
    base_ = next_storage_;
  }
  void clear() {
    root_ = Step();
    here_ = &root_;
    forgotten_ = std::exchange(steps_, {});
    words_ = 0;
    cut();
  }
  // Nothing came before: of a new session.
  void reset() {
    clear();
    next_storage_ = 1;
    next_counter_ = 0;
    cut();
  }
  // Before all steps; no segment ends with it.
  const Step& root() const { return root_; }
  // The first storage that is new in this segment.
  uint64_t base() const { return base_; }
  bool full() const { return steps_.size() >= kStepsMax || words_ >= kStepWordsMax; }

  // The step of this key that came here before, or null.
  Step* find(uint64_t key) const {
    if (here_ == nullptr) return nullptr;
    if (here_->likely != nullptr && here_->likely->key == key) return here_->likely;
    for (Step* step : here_->next) {
      if (step->key == key) return step;
    }
    return nullptr;
  }
  Step* likely() const { return here_ == nullptr ? nullptr : here_->likely; }
  // By its number among the steps that came here; null if there is none.
  Step* child(uint64_t number) const { return here_ == nullptr || number >= here_->next.size() ? nullptr : here_->next[number]; }
  uint64_t number_of(const Step& step) const {
    return static_cast<uint64_t>(std::find(here_->next.begin(), here_->next.end(), &step) - here_->next.begin());
  }

  // Which of the words a step would not expect.
  void compare(const Step& step, const Words& words, std::vector<Change>& changes) const {
    changes.clear();
    Expectation expectation(*this, step);
    for (size_t index = 0; index < words.size(); ++index) {
      if (expectation.next(step.slots[index]) != words[index]) changes.push_back({index, words[index]});
      expectation.came(step.slots[index].kind, words[index]);
    }
  }
  // The words that a step expects, but for the changes, which are in the order of their indices.
  void expect(const Step& step, const std::vector<Change>& changes, Words& words) const {
    words.resize(step.slots.size());
    Expectation expectation(*this, step);
    auto change = changes.begin();
    for (size_t index = 0; index < words.size(); ++index) {
      words[index] = expectation.next(step.slots[index]);
      if (change != changes.end() && change->index == index) words[index] = (change++)->word;
      expectation.came(step.slots[index].kind, words[index]);
    }
  }
  bool expects_freed(const Step& step, const Words& freed) const {
    return step.freed.size() == freed.size() &&
           std::equal(freed.begin(), freed.end(), step.freed.begin(), [&](uint64_t id, const Slot& slot) { return id == stored(slot, step); });
  }
  // Whether what was freed so far is how the list that a step expects begins; all of it counts as its beginning, too.
  bool expects_more_freed(const Step& step, const Words& freed) const {
    return freed.size() <= step.freed.size() &&
           std::equal(freed.begin(), freed.end(), step.freed.begin(), [&](uint64_t id, const Slot& slot) { return id == stored(slot, step); });
  }
  // The storages of that list from the given place on, put behind `freed`.
  void expect_freed(const Step& step, size_t from, Words& freed) const {
    for (; from < step.freed.size(); ++from) freed.push_back(stored(step.freed[from], step));
  }

  // A step that never came here, not yet taken. Null where no more are kept: the rest of the segment is not, either.
  Step* add(uint64_t key, const std::vector<Word>& kinds) {
    if (here_ == nullptr || full() || here_->next.size() >= kStepChildrenMax) {
      here_ = nullptr;
      return nullptr;
    }
    Step& step = steps_.emplace_back();
    step.key = key;
    step.base = base_;
    step.slots.reserve(kinds.size());
    for (const Word kind : kinds) step.slots.push_back({kUnseen, kind, false});
    words_ += kinds.size();
    here_->next.push_back(&step);
    return &step;
  }
  // The step comes, with these words.
  void take(Step& step, const Words& words, const Words& freed) {
    if (!forgotten_.empty()) [[unlikely]] forgotten_.pop_front();
    for (size_t index = 0; index < words.size(); ++index) {
      Slot& slot = step.slots[index];
      if (slot.kind == Word::kStorage) {
        learn(slot, words[index], step);
      } else {
        slot.varies |= step.came > 0 && is_number(slot.kind) && slot.last != words[index];
        slot.last = words[index];
        count(slot.kind, words[index]);
      }
    }
    learn_freed(step, freed);
    step.base = base_;
    ++step.came;
    here_->likely = &step;
    here_ = &step;
  }
  // A call comes in full. Returns its step; null where it is not kept.
  Step* come(uint64_t key, const std::vector<Word>& kinds, const Words& words, const Words& freed) {
    Step* step = find(key);
    if (step == nullptr) step = add(key, kinds);
    if (step != nullptr) {
      take(*step, words, freed);
    } else {
      pass(kinds, words);
    }
    return step;
  }
  // A call comes that is not kept.
  void pass(const std::vector<Word>& kinds, const Words& words) {
    for (size_t index = 0; index < words.size(); ++index) count(kinds[index], words[index]);
  }

 private:
  static constexpr uint64_t kUnseen = ~uint64_t{0};

  // Goes through a call's words in order: each new storage follows the one before.
  class Expectation {
   public:
    Expectation(const Traces& traces, const Step& step) : traces_(traces), step_(step), next_storage_(traces.next_storage_) {}
    uint64_t next(const Slot& slot) const {
      switch (slot.kind) {
        case Word::kStorage:
          return traces_.stored(slot, step_);
        case Word::kNew:
          return next_storage_;
        case Word::kCounter:
          return traces_.next_counter_;
        default:
          return slot.last;
      }
    }
    void came(Word kind, uint64_t word) {
      if (kind == Word::kNew) next_storage_ = word + 1;
    }

   private:
    const Traces& traces_;
    const Step& step_;
    uint64_t next_storage_;
  };

  static bool is_number(Word kind) { return kind == Word::kBits || kind == Word::kNumber || kind == Word::kByte; }

  uint64_t stored(const Slot& slot, const Step& step) const { return slot.moves ? slot.last + (base_ - step.base) : slot.last; }

  void count(Word kind, uint64_t word) {
    if (kind == Word::kNew) next_storage_ = word + 1;
    if (kind == Word::kCounter) next_counter_ = word + 1;
  }

  void learn(Slot& slot, uint64_t id, const Step& step) const {
    const uint64_t shift = base_ - step.base;
    if (slot.last == kUnseen) {
      slot.moves = id >= base_;
    } else if (id == slot.last) {
      if (shift != 0) slot.moves = false;
    } else {
      slot.moves = id - slot.last == shift || id >= base_;
    }
    slot.last = id;
  }

  void learn_freed(Step& step, const Words& freed) {
    const size_t kept = freed.size() > kFreedKeptMax ? 0 : freed.size();
    if (step.freed.size() != kept) {
      words_ += kept - step.freed.size();
      step.freed.assign(kept, {kUnseen, Word::kStorage, false});
    }
    for (size_t index = 0; index < kept; ++index) learn(step.freed[index], freed[index], step);
  }

  Step root_;
  Step* here_ = &root_;
  uint64_t base_ = 1;
  uint64_t next_storage_ = 1;
  uint64_t next_counter_ = 0;
  std::deque<Step> steps_;
  std::deque<Step> forgotten_;  // to be freed one by one as others come: to free all takes 20 ms and more, of the user's thread, too
  size_t words_ = 0;
};

}  // namespace forebay::wire
