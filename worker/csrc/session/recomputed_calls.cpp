#include "session/recomputed_calls.h"

namespace forebay::worker {

void RecomputedCalls::heed(bool is_wanted) {
  if (recomputation_.is_on() && (!is_wanted || !device_.is_host())) settle();  // as it was computed
  recomputation_.turn(is_wanted);
  was_wanted_ = was_wanted_ || is_wanted;
}

Cause RecomputedCalls::prepare(Plan& plan, const wire::Words& words, uint64_t sequence) {
  if (!recomputation_.is_on()) return nullptr;
  caller_.skip_question(plan, words);
  try {
    recomputation_.begin(plan, words);
    return nullptr;
  } catch (...) {
    return effects_.stop_now(plan.op.schema().name(), sequence, &plan);
  }
}

void RecomputedCalls::settle(bool may_compute) {
  const auto lost = recomputation_.settle(may_compute);
  if (lost.empty()) return;
  const CommandError error(wire::FailureCode::kOutOfMemory, "tensors that were to be computed again have no room in memory, and are lost");
  const Cause cause = effects_.announced(effects_.stop(error, "recomputation", effects_.next_call()));
  for (const uint64_t id : lost) effects_.never_make(id, cause);
}

}  // namespace forebay::worker
