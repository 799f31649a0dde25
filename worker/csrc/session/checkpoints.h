// The checkpoints of a session: the commands that take them and go back to them, and what calls have to do with them.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/replies.h"
#include "call/call.h"
#include "call/effects.h"
#include "call/plan.h"
#include "call/templates.h"
#include "collectives/collectives.h"
#include "device/device.h"
#include "device/packed_versions.h"
#include "device/storage.h"
#include "device/versions.h"
#include "session/recomputed_calls.h"
#include "tier2/executor.h"
#include "tier2/tier1.h"

namespace forebay::worker {

class Checkpoints {
 public:
  Checkpoints(const Device& device, Storages& storages, SharedStorages& shared, Caller& caller, Effects& effects, RecomputedCalls& recomputed, const Collectives& collectives,
              Replies& replies)
      : device_(device), storages_(storages), shared_(shared), caller_(caller), effects_(effects), recomputed_(recomputed), collectives_(collectives), replies_(replies), versions_(device, storages, shared) {}

  // What the client is told of them at its WELCOME. `in_images`: the session's images are kept.
  uint8_t extent(bool in_images) const;

  // Commands. They throw wire::WireError for what is not the protocol.
  void take(wire::Reader& in);
  void tell(wire::Reader& in);
  void go_back(wire::Reader& in);
  void drop(wire::Reader& in) { versions_.discard(in.varint()); }

  // One with which other sessions may begin. Whether it, or a later one, has come, whether or not it was taken.
  bool has_come(uint64_t number) const { return versions_.has_come(number); }
  const Snapshot* snapshot(uint64_t number) const { return versions_.snapshot(number); }
  // Why it is not there, or not any more.
  const std::string& why_no_forks() const { return versions_.why_no_forks(); }
  void hand_over(uint64_t number, const Storages::TakeBytes& take) { versions_.hand_over(number, take); }

  // On their way to another worker.
  PackedVersions packed(Packing packing) const { return PackedVersions(device_, versions_, storages_, packing); }
  std::unique_ptr<ArrivingVersions> arriving();

  // Has the client know that some were dropped, or not taken, unasked.
  void report_dropped();
  // A call comes: what it writes to is kept first. To be called before its storages are bound. `is_question`: it cannot be carried out again.
  void begin_call(const Plan& plan, const wire::Words& words, bool is_question = false) {
    if (versions_.are_kept()) [[unlikely]] keep_written(plan, words, is_question);
  }
  // As begin_call, of all the calls of a segment that is carried out at once.
  void begin_segment(const Path& path, Templates& templates);
  // Has the call carried out that is bound; without the checkpoints, if there is no memory for it beside them.
  void run(const RecordedCall::Call& call);
  // The program wants what it computes made again where memory is short: that and checkpoints do not go together.
  void yield_to_recomputation();
  // The session may hold less than before.
  void make_room() { versions_.make_room(0); }
  // The storages are parked, and there are so many bytes left on the host.
  void park(int64_t bytes) {
    if (versions_.are_kept()) versions_.park(bytes);
  }

 private:
  void take_for_forks(uint64_t number);
  // Why none can be taken now; empty: one can.
  std::string refusal() const;
  void put(wire::Writer& head) const;
  void keep_written(const Plan& plan, const wire::Words& words, bool is_question);
  // Ends them where the session does not have them any more.
  void check();

  const Device& device_;
  Storages& storages_;
  SharedStorages& shared_;
  Caller& caller_;
  Effects& effects_;
  RecomputedCalls& recomputed_;
  const Collectives& collectives_;
  Replies& replies_;
  Versions versions_;
};

// Has a segment's storages kept before another executor carries it out at once.
class KeepingExecutor final : public Executor {
 public:
  KeepingExecutor(std::unique_ptr<Executor> executor, Checkpoints& checkpoints, Templates& templates) : executor_(std::move(executor)), checkpoints_(checkpoints), templates_(templates) {}
  void prepare(Candidate& candidate, const Candidates& all) override { executor_->prepare(candidate, all); }  // by tier 1
  void verify(Candidate& candidate) override {
    checkpoints_.begin_segment(candidate.path(), templates_);
    executor_->verify(candidate);
  }
  bool run(Candidate& candidate) override {
    checkpoints_.begin_segment(candidate.path(), templates_);
    return executor_->run(candidate);
  }
  void forget() override { executor_->forget(); }

 private:
  std::unique_ptr<Executor> executor_;
  Checkpoints& checkpoints_;
  Templates& templates_;
};

}  // namespace forebay::worker
