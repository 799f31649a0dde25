// How the devices of a gang hold what a call is given, and how they carry it out together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <forebay/gang_work.h>
#include <forebay/traces.h>

#include "call/plan.h"
#include "device/placement.h"
#include "sharding/composition.h"

namespace forebay::worker {

struct TemplateCall {
  uint64_t number;  // of the template
  const Plan* plan;
  wire::Words words;
};

// A storage.
struct Held {
  std::optional<Placement> placement;  // none of what one device has alone, or nobody yet
  int64_t bytes = 0;
  bool is_untouched = false;           // reads as zeros, and may be made in any placement
  bool may_be_copied = false;          // each device may have a copy of what is in rows, where a call is divided by others

  // 0 where it is not in rows.
  int64_t period() const { return placement && placement->sharing == Sharing::kRows ? placement->period : 0; }
};

using HeldLookup = std::function<Held(uint64_t id)>;

// Of a call.
struct Way {
  // Where a tensor argument begins: as it is said; in a storage in rows; or in a copy of which each device takes a part.
  struct Start {
    enum class Kind { kSame, kRows, kPart } kind = Kind::kSame;
    int64_t item_bytes = 1;
    int64_t period = 0;
    int64_t room = 0;
    int64_t step = 0;  // kPart: elements from one device's part to the next one's
  };
  struct Made {
    Placement placement;
    int64_t bytes = 0;  // of the whole
  };
  bool whole = false;         // on this device alone
  bool by_owners = false;     // each part by one device, which need not be this one (owners.h)
  wire::Alone alone = wire::Alone::kNoRule;  // why, if it is
  uint64_t definition = 0;    // of the template of the parts
  std::vector<Start> starts;  // of the tensor arguments, in order; none where all are the same
  std::vector<Made> made;     // the new storages, in order
  std::vector<int64_t> fresh; // of each tensor argument, the period that it is to have where it is untouched or a copy; 0 for copies; none where all are
  std::vector<size_t> copied;  // tensor arguments in rows that must be copies first; such a way is not for carrying out
  // Tensor arguments in rows that must first be turned into rows of another period, of another dimension; such a way is not for carrying out. And results,
  // new storages by number, that are turned afterwards.
  std::vector<std::pair<size_t, int64_t>> turned, turned_back;
  std::vector<std::pair<size_t, Placement>> written;  // tensor arguments, copies before, which each device writes to, and of which the whole is then made so
  std::optional<size_t> first_word; // of the call, a number: 0 to all devices but this one, as of what is added once to a sum
  std::optional<size_t> zero_word;  // of the call, a number: the way serves only calls where it is 0
  std::shared_ptr<const Composition> composition;  // of more calls than one, if it is

  // Whether a call is divided so, as it is held.
  bool is_divided() const { return !whole && copied.empty() && turned.empty(); }
};

// The words of a way's call on one device; none where a view does not lie in whole rows.
std::optional<wire::Words> local_words(const Way& way, const Plan& plan, const wire::Words& words, int place, int64_t devices);

}  // namespace forebay::worker
