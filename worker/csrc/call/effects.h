// The one place where a session's calls take effect: the number of each call, the storages that it makes, and the cause why it makes none.
//
// Whatever carries a call out (PyTorch's kernels, another device, a compiled library, a graph) ends in `commit`. From there on nothing of the
// call can fail any more: a log of effects would be written there. A failure stops the session until its client has heard of it. While it is
// stopped, calls are numbered and committed as ever, and make nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "base/replies.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"

namespace forebay::worker {

// What became of one step: of a call, or of an allocation.
struct Effect {
  uint64_t number;                       // of the call; of an allocation: of the call that comes next
  const std::vector<wire::Word>& kinds;  // of the words
  const wire::Words& words;              // that the step bound: its storages and numbers
  const Cause& cause;                    // why it made nothing; null: it took effect
};

class Effects {
 public:
  Effects(const Device& device, Storages& storages, Replies& replies) : device_(device), storages_(storages), replies_(replies) {}

  // The number of the next call.
  uint64_t next_call() const { return next_call_; }
  // Takes that number, whether or not the call will take effect.
  uint64_t begin_call() { return next_call_++; }
  // It is final. Without a cause the step's results are there already; with one, its new storages are never made.
  void commit(const Effect& effect) {
    if (effect.cause) [[unlikely]] never_make(effect);
  }
  // As commit, of so many calls in a row that were carried out as one.
  void commit_together(uint64_t calls) { next_call_ += calls; }
  // A storage is never made, whether or not something of it was.
  void never_make(uint64_t id, const Cause& cause) { storages_.insert_failed(id, cause); }

  // The last failure, until the client has heard of it; null: the session goes on.
  const Cause& stopped() const { return stopped_; }
  // Why the device computes no more, or null.
  const Cause& lost() const { return lost_; }
  bool goes_on() const { return !stopped_ && !lost_; }
  uint64_t failures() const { return failures_; }
  // The client has heard of the failure of this number.
  void hear(uint64_t number);

  // A command fails: nothing takes effect from here on. `sequence`: the number of its call.
  Cause stop(Failure failure);
  Cause stop(const CommandError& error, const std::string& op, uint64_t sequence);
  // For the exception being handled.
  Cause stop_now(const std::string& op, uint64_t sequence, const Plan* plan = nullptr);
  // For a command that uses what was never made.
  Cause stop_after(const Failure& cause) { return stop(derived(cause)); }
  // Of what uses something that was never made; of no number, so nothing fails again by it.
  static Failure derived(const Failure& cause);
  // What is said of a failure for want of memory, given what the device says.
  void explain_memory_by(std::function<std::string(const std::string&)> explain) { explain_memory_ = std::move(explain); }

  // Sends the failure to the client: in answer to its request, or to nothing it asked.
  void report(uint64_t request, const Failure& failure);
  Cause announced(Cause cause);

  // A session that comes from another worker goes on after so many calls and failures. `unheard`: the last failure, if its client has not heard.
  void resume(uint64_t next_call, uint64_t failures, const Cause& unheard);

 private:
  void never_make(const Effect& effect);

  const Device& device_;
  Storages& storages_;
  Replies& replies_;
  std::function<std::string(const std::string&)> explain_memory_;
  uint64_t next_call_ = 0;
  uint64_t failures_ = 0;  // so far
  Cause stopped_;
  Cause lost_;
};

}  // namespace forebay::worker
