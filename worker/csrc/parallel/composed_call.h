// Carries out a call on all devices as a composition says.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "call/call.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/shares.h"
#include "sharding/composition.h"

namespace forebay::worker {

class ComposedCall {
 public:
  // `words`: of the call, as each device has them. `results`: its new storages.
  ComposedCall(Gang& gang, Storages& storages, Caller& caller, const Composition& composition, std::vector<wire::Words> words,
               const std::vector<uint64_t>& results);

  // `settle`: waits until all that was sent is carried out; false where something failed.
  using Settle = std::function<bool()>;
  // Throws CommandError, what a step throws; then none of it was made, and nothing was written to. `plan`: of the call.
  void carry_out(Shares& shares, const Plan& plan, uint64_t sequence, const Settle& settle);

 private:
  using Steps = std::vector<Composition::Step>::const_iterator;

  static bool begins_group(Steps step, Steps before);
  void carry_out(Steps first, Steps last, Shares& shares, const Plan& plan, uint64_t sequence);
  void withdraw();
  wire::Words words_of(const Composition::Step& step, int place) const { return composition_.words_of(step, {words_[static_cast<size_t>(place)], ids_, place}); }
  int devices() const { return static_cast<int>(gang_.size()); }

  Gang& gang_;
  Storages& storages_;
  Caller& caller_;
  const Composition& composition_;
  std::vector<wire::Words> words_;
  std::vector<uint64_t> ids_;
  std::vector<uint64_t> sent_;  // that other devices were told to make, and no storage stands for yet
};

}  // namespace forebay::worker
