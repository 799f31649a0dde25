#include "parallel/composed_call.h"

#include <algorithm>

namespace forebay::worker {

ComposedCall::ComposedCall(Gang& gang, Storages& storages, Caller& caller, const Composition& composition, std::vector<wire::Words> words,
                           const std::vector<uint64_t>& results)
    : gang_(gang), storages_(storages), caller_(caller), composition_(composition), words_(std::move(words)), ids_(composition.ids(results, storages)) {}

// On all devices.

void ComposedCall::carry_out(Shares& shares, const Plan& plan, uint64_t sequence, const Settle& settle) {
  try {
    for (size_t made = 0; made < ids_.size(); ++made) {
      const auto& one = composition_.made[made];
      if (!one.from_zeros) continue;
      storages_.insert(ids_[made], one.bytes);
      shares.begin(ids_[made], one.placement);
    }
    const auto& steps = composition_.steps;
    for (auto first = steps.begin(), last = first; first != steps.end(); first = last) {
      if (first->writes || !first->sums.empty()) {
        if (!settle()) throw CommandError(wire::FailureCode::kOperator, "a call before it failed");
        std::vector<uint64_t> sums;
        for (const size_t made : first->sums) sums.push_back(ids_[made]);
        shares.merge(sums);
      }
      for (++last; last != steps.end() && !begins_group(last, last - 1);) ++last;
      carry_out(first, last, shares, plan, sequence);
    }
  } catch (...) {
    withdraw();
    throw;
  }
  for (size_t made = 0; made < ids_.size(); ++made) {
    if (!composition_.made[made].result) storages_.free(ids_[made]);
  }
}

// Whether other devices must be waited for between two steps.
bool ComposedCall::begins_group(Steps step, Steps before) { return !step->sums.empty() || (step->writes && !before->writes); }

void ComposedCall::carry_out(Steps first, Steps last, Shares& shares, const Plan& plan, uint64_t sequence) {
  for (auto step = first; step != last; ++step) {
    for (const size_t made : step->makes) sent_.push_back(ids_[made]);
  }
  for (int place = 1; place < devices(); ++place) {
    for (auto step = first; step != last; ++step) gang_.send(place, step->definition, gang_.templates().own_plan(step->definition), words_of(*step, place), sequence, &plan);
    gang_.rank(place).flush();
  }
  for (auto step = first; step != last; ++step) {
    Plan& local = gang_.templates().own_plan(step->definition);
    caller_.bind(local, words_of(*step, 0));
    caller_.run(local);
    for (const size_t made : step->makes) {
      shares.made(ids_[made], composition_.made[made].placement, composition_.made[made].bytes);
      sent_.erase(std::find(sent_.begin(), sent_.end(), ids_[made]));  // from here on it is freed there with the storage
    }
  }
}

// Nothing of the call stays, on any device.
void ComposedCall::withdraw() {
  caller_.withdraw();
  for (const uint64_t id : sent_) {
    for (int place = 1; place < devices(); ++place) gang_.rank(place).free(id);
  }
  for (const uint64_t id : ids_) storages_.withdraw(id);
}

}  // namespace forebay::worker
