#include "session/recomputed_calls.h"

#include <memory>
#include <utility>
#include <vector>

#include "parallel/gang_repeater.h"

namespace forebay::worker {

void RecomputedCalls::join(GangCaller& gang) {
  recomputation_.repeat_by(std::make_unique<GangRepeater>(gang, storages_));
  gang.recompute_by({
      [this](const std::vector<uint64_t>& ids, bool only_read) {
        for (const uint64_t id : ids) recomputation_.use(id, !only_read);
      },
      [this](uint64_t sequence, const std::vector<uint64_t>& never_made) { recomputation_.withdraw(sequence, never_made); },
  });
}

void RecomputedCalls::heed(bool is_wanted) {
  if (arrived_ && !is_wanted) throw wire::WireError("an image of a session that recomputes, which is not told to");
  if (recomputation_.is_on() && (!is_wanted || !device_.is_host())) settle();  // as it was computed
  if (arrived_) recomputation_.products().resume_calls(*std::exchange(arrived_, nullptr), templates_);
  recomputation_.turn(is_wanted);
  was_wanted_ = was_wanted_ || is_wanted;
}

Cause RecomputedCalls::prepare(Plan& plan, const wire::Words& words, uint64_t sequence, bool is_question) {
  if (!recomputation_.is_on()) return nullptr;
  caller_.skip_question(plan, words);
  try {
    recomputation_.begin(plan, words);
    return nullptr;
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    if (effects_.stopped()) return effects_.stopped();  // a call before it has failed on another device, and its client was told
    Cause cause = effects_.stop_now(plan.op.schema().name(), sequence, &plan);
    return is_question ? cause : effects_.announced(std::move(cause));
  }
}

void RecomputedCalls::settle(bool may_compute) {
  const auto lost = recomputation_.settle(may_compute);
  if (lost.empty()) return;
  const CommandError error(wire::FailureCode::kOutOfMemory, "tensors that were to be computed again have no room in memory, and are lost");
  const Cause cause = effects_.announced(effects_.stop(error, "recomputation", effects_.next_call()));
  for (const uint64_t id : lost) effects_.never_make(id, cause);
}

void RecomputedCalls::leave() {
  settle(/*may_compute=*/false);
  recomputation_.turn(false);
}

std::vector<uint8_t> RecomputedCalls::packed() {
  recomputation_.end();
  if (!recomputation_.is_on()) return {};
  wire::Writer out;
  put_products(out, recomputation_.products().packed());
  return out.bytes();
}

std::unordered_set<uint64_t> RecomputedCalls::arrive(wire::Reader& in) {
  arrived_ = std::make_unique<PackedProducts>(get_products(in));
  return arrived_->absent();
}

void RecomputedCalls::resume() {
  if (arrived_) recomputation_.products().resume(*arrived_);
}

}  // namespace forebay::worker
