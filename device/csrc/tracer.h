// Puts calls into the command stream: in full where they are new, and as next to nothing where the worker expects them (forebay/traces.h).
//
// All of it under the stream's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/traces.h"
#include "forebay/wire.h"

namespace forebay {

class CommandStream;

class Tracer {
 public:
  explicit Tracer(CommandStream& stream) : stream_(stream) {}

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

  uint64_t expected_steps() const { return expected_steps_; }

 private:
  void take(wire::Step& step, const wire::Words& words);
  bool frees_as_expected(const wire::Step& step);
  void say_unexpected_frees(const wire::Step& step);
  void put_frees(const wire::Words& storages);
  void put_step(const wire::Step& step);
  void put_cut(bool forget);
  void count(wire::Step* step);
  size_t repetition() const;

  CommandStream& stream_;
  wire::Traces traces_;
  uint64_t following_ = 0;              // expected steps that the worker was not told of
  wire::Words said_frees_;              // since the last step
  wire::Words unsaid_frees_;
  std::vector<wire::Change> changes_;
  std::vector<uint64_t> keys_;          // of this segment
  size_t repeats_in_ = 0;               // steps until the repetition that was found ends; 0: none
  uint64_t expected_steps_ = 0;
};

}  // namespace forebay
