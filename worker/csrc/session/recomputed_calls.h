// A session's calls, where its program wants what they make to be computed once more where memory is short.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include <forebay/wire.h>

#include "call/call.h"
#include "call/effects.h"
#include "call/plan.h"
#include "call/templates.h"
#include "device/device.h"
#include "device/storage.h"
#include "parallel/gang_caller.h"
#include "recomputation/recomputation.h"

namespace forebay::worker {

class RecomputedCalls {
 public:
  RecomputedCalls(const Device& device, Storages& storages, Templates& templates, Caller& caller, Effects& effects)
      : device_(device), storages_(storages), templates_(templates), caller_(caller), effects_(effects), recomputation_(device, storages) {}

  // The session computes on several devices; it has done nothing yet.
  void join(GangCaller& gang);
  // As the program says, and each time that it says otherwise how its device computes.
  void heed(bool is_wanted);
  // Whether its program has said so.
  bool was_wanted() const { return was_wanted_; }
  // All that the call is given is in memory. Returns why not, or null. The client is told, but for a question, whose answer tells.
  Cause prepare(Plan& plan, const wire::Words& words, uint64_t sequence, bool is_question = false);
  // Has the call carried out that is bound.
  void run(const RecordedCall::Call& call) { recomputation_.is_on() ? recomputation_.run(caller_, call) : caller_.run(call.plan); }
  // Several devices have carried the call out. `may_repeat`: it can be carried out again as it came.
  void note(const RecordedCall::Call& call, bool may_repeat) {
    if (recomputation_.is_on() && may_repeat) recomputation_.note(call, 0);
  }
  // An allocation comes, and has come.
  void begin_allocation(int64_t bytes) {
    if (recomputation_.is_on()) recomputation_.begin_allocation(bytes);
  }
  void note_allocation(uint64_t id) {
    if (recomputation_.is_on()) recomputation_.note_allocation(id);
  }
  // The command ends.
  void end() { recomputation_.end(); }

  // Whether something is let go.
  bool lacks_any() const { return recomputation_.products().lacks_any(); }
  // What was let go is made, as far as there is room. Computes.
  void restore() {
    recomputation_.restore();
    recomputation_.end();
  }
  // What was let go is made for good, where the device may compute; what is not made is lost, and a failure says so.
  void settle(bool may_compute = true);
  // The session leaves with what is in memory: nothing is made again from here on.
  void leave();

  // For an image: what there is to know of storages that can be made again; nothing where none is noted.
  std::vector<uint8_t> packed();
  // And of a worker that goes on from that image: before its storages come, of which those that are returned are let go; once they have; and once
  // the program has said that it recomputes, and templates are known, by `heed`. They throw wire::WireError.
  std::unordered_set<uint64_t> arrive(wire::Reader& in);
  void resume();

 private:
  const Device& device_;
  Storages& storages_;
  Templates& templates_;
  Caller& caller_;
  Effects& effects_;
  Recomputation recomputation_;
  bool was_wanted_ = false;
  std::unique_ptr<PackedProducts> arrived_;  // whose calls are not known yet
};

}  // namespace forebay::worker
