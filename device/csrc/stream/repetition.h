// Where a program that neither reads nor uploads goes round in a loop. Of what came in one segment, without the stream.
//
// What repeats itself may be the layers of one step. So a loop is taken for one where it does what it did to the same storages that
// were there before (a layer has weights of its own), and where it comes back to as little alive as before (a step of a recurrent network
// in training leaves activations behind, a micro-batch gradients).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "forebay/traces.h"

namespace forebay {

// What a device holds at one moment, as its client counts it.
struct Alive {
  int64_t storages = 0;
  int64_t bytes = 0;
};

struct Repetition {
  size_t period;    // steps
  size_t boundary;  // a step that one round begins with: of the last round but one
  size_t first;     // a step that the first round begins with of which all that follows is a repetition
};

// What is to come again before it is taken for a loop: so many steps, and so many rounds after the first one.
struct Evidence {
  size_t steps = 1024;
  size_t rounds = 1;
};

// By what a loop is looked for after so many steps of a segment, if it is. A program that neither reads nor uploads for so many may be one.
// Libraries are made of one round of it, so for them it is looked for sooner, and is to go round four times.
std::optional<Evidence> evidence_sought(size_t steps, bool for_library);

// The steps of one segment in their order.
class Course {
 public:
  // A step, before it is carried out; `base` is the segment's.
  void note(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds, uint64_t base, Alive alive);
  void clear();
  size_t size() const { return moments_.size(); }
  size_t words() const { return storages_.size(); }
  uint64_t key(size_t index) const { return moments_[index].key; }

  // The loop that the last steps went round; with `settled`, only one that leaves nothing behind.
  std::optional<Repetition> repetition(bool settled, Evidence evidence = {}) const;
  // The loop that all steps are rounds of: two at least, and nothing else.
  std::optional<Repetition> rounds() const;

 private:
  struct Moment {
    uint64_t key;
    uint64_t newest;   // storages below this one were there before the step
    size_t storages;   // where those that it names begin
    Alive alive;
  };

  std::vector<size_t> repeated_ends() const;
  std::vector<size_t> repeated_beginnings() const;
  bool keeps_storages(size_t period, size_t count) const;
  std::vector<size_t> boundaries(size_t period, const std::vector<size_t>& like_beginning) const;
  bool leaves_nothing(const Repetition& found) const;
  static bool has_less(const Moment& one, const Moment& other);

  std::vector<Moment> moments_;
  std::vector<uint64_t> storages_;
  uint64_t newest_ = 0;  // a storage below this one was there when the next step came
};

}  // namespace forebay
