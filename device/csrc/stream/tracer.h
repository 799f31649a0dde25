// Puts calls into the command stream: in full where they are new, and as next to nothing where the worker expects them (forebay/traces.h).
//
// All of it under the stream's lock.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "forebay/traces.h"
#include "forebay/wire.h"
#include "replay/frames.h"
#include "stream/repetition.h"

namespace forebay {

class Tracer {
 public:
  Tracer(Frames& frames, c10::DeviceIndex device) : frames_(frames), device_(device) {}

  // Whether the worker is still to hear of calls that it expects.
  bool has_unsaid() const { return following_ > 0; }
  // Says so; to be called before any other command is put.
  void settle();

  // A call of a template, or an allocation: `words` are what it binds, of these kinds.
  void step(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds);
  // As `step`, in full even where it is expected: for an allocation while no lease is open.
  void step_in_full(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds);

  // Frees are said with the next step, so that expected ones need not be said at all; or now.
  void free(uint64_t storage) { unsaid_frees_.push_back(storage); }
  void say_frees();

  // A command that the worker, too, knows to cut at is about to be put.
  void cut();
  // The templates are forgotten, on both sides.
  void clear();
  // A new session begins.
  void reset();

  // No step came since the last cut.
  bool is_between_segments() const { return path_.empty(); }
  // Between two segments: appends frames that tell another worker what this one remembers of the steps.
  void put_traces(std::vector<uint8_t>& frames) const;

  uint64_t expected_steps() const { return expected_steps_; }

 private:
  void take(wire::Step& step, const wire::Words& words);
  bool frees_as_expected(const wire::Step& step);
  void say_unexpected_frees(const wire::Step& step);
  void put_frees(const wire::Words& storages);
  void put_step(const wire::Step& step);
  void put_cut(bool forget);
  void note(uint64_t key, const wire::Words& words, const std::vector<wire::Word>& kinds);
  void came(wire::Step* step);
  bool ends_round(wire::Step* step);
  bool finds_loop(const wire::Step* step);
  void find_rounds();
  void end_at_first_round(const Repetition& found);
  void end_segment();
  // So long that it is cut anyway.
  bool is_long() const;

  Frames& frames_;
  const c10::DeviceIndex device_;
  wire::Traces traces_;
  uint64_t following_ = 0;              // expected steps that the worker was not told of
  wire::Words said_frees_;              // since the last step
  wire::Words unsaid_frees_;
  std::vector<wire::Change> changes_;
  Course course_;                       // of this segment
  std::vector<wire::Step*> path_;       // likewise; null where a step is not kept
  std::vector<uint64_t> round_;         // keys of what goes round, of one segment; empty: no loop was found
  size_t rounded_ = 0;                  // of them, how many came
  bool round_is_segment_ = false;       // it is a whole one that comes now
  uint64_t expected_steps_ = 0;
};

}  // namespace forebay
