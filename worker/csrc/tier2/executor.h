// Whatever carries out a segment as a whole, in place of tier 1.
#pragma once

#include <memory>
#include <vector>

#include "call/call.h"
#include "call/effects.h"
#include "call/templates.h"
#include "device/device.h"
#include "device/storage.h"
#include "tier2/candidate.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// All segments of a session that have or may get a library or a graph.
using Candidates = std::vector<std::unique_ptr<Candidate>>;

// What of its session an executor computes with.
struct ExecutorContext {
  const Device& device;
  Storages& storages;
  Templates& templates;
  Caller& caller;
  Effects& effects;
  Tier1& tier1;
};

// Each method carries out all steps of the candidate, which have come and are deferred, exactly once: by itself or by tier 1.
class Executor {
 public:
  virtual ~Executor() = default;
  // Makes ready what will carry the segment out, of the words that its steps came with. Tier 1 computes this time.
  virtual void prepare(Candidate& candidate, const Candidates& all) = 0;
  // Compares the executor's results with those of tier 1, which stay.
  virtual void verify(Candidate& candidate) = 0;
  // Carries the segment out by whichever tier's turn it is. True if tier 2 did; false if tier 1 had to.
  virtual bool run(Candidate& candidate) = 0;
  // Templates have new numbers from here on, and all candidates are gone.
  virtual void forget() {}
};

}  // namespace forebay::worker
