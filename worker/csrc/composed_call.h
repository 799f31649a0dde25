// Carries out a call as a composition says: on all devices, or, to try it, for all of them on this one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <c10/core/Storage.h>

#include "call.h"
#include "composition.h"
#include "gang.h"
#include "shares.h"
#include "storage.h"

namespace forebay::worker {

using Memory = std::map<uint64_t, c10::Storage>;

// As long as it lives, storages have other memory than their own.
class Loan {
 public:
  Loan(Storages& storages, const Memory& memory) : storages_(storages), memory_(memory) { exchange(); }
  ~Loan() { exchange(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  void exchange() {
    for (auto& [id, storage] : memory_) storages_.at(id).exchange(storage);
  }
  Storages& storages_;
  Memory memory_;
};

class ComposedCall {
 public:
  // `words`: of the call, as each device has them. `results`: its new storages.
  ComposedCall(Gang& gang, const Device& device, Storages& storages, Caller& caller, const Composition& composition, std::vector<wire::Words> words,
               const std::vector<uint64_t>& results);

  // `settle`: waits until all that was sent is carried out; false where something failed.
  using Settle = std::function<bool()>;
  // Throws CommandError, what a step throws; then none of it was made, and nothing was written to. `plan`: of the call.
  void carry_out(Shares& shares, const Plan& plan, uint64_t sequence, const Settle& settle);

  // Of what each device holds, and afterwards what it has made too.
  void rehearse(std::vector<Memory>& memory);
  uint64_t id(size_t made) const { return ids_[made]; }

 private:
  using Steps = std::vector<Composition::Step>::const_iterator;

  static bool begins_group(Steps step, Steps before);
  void carry_out(Steps first, Steps last, Shares& shares, const Plan& plan, uint64_t sequence);
  void withdraw();
  void rehearse(const Composition::Step& step, int place, Memory& memory);
  void sum(size_t made, std::vector<Memory>& memory) const;
  wire::Words words_of(const Composition::Step& step, int place) const { return composition_.words_of(step, {words_[static_cast<size_t>(place)], ids_, place}); }
  int devices() const { return static_cast<int>(gang_.size()); }

  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Caller& caller_;
  const Composition& composition_;
  std::vector<wire::Words> words_;
  std::vector<uint64_t> ids_;
  std::vector<uint64_t> sent_;  // that other devices were told to make
};

}  // namespace forebay::worker
