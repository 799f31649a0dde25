// How a call is divided whose tensors are copies, or in rows, or whole on this device: by its operator's strategy (strategies/strategy.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "call/plan.h"
#include "device/device.h"
#include "gang/gang.h"
#include "sharding/composition.h"
#include "sharding/local_call.h"
#include "sharding/way.h"
#include "strategies/strategy.h"

namespace forebay::worker {

class Sharding {
 public:
  Sharding(Gang& gang, const Device& device, int64_t parts, HeldLookup held, uint64_t number, const Plan& plan, const wire::Words& words);

  // None where no rule divides the call, or its views do not lie in whole rows. Throws wire::WireError as making a plan does.
  std::optional<Way> way();
  // Where none divides it as it is held: how it is divided once what is in rows of a dimension is in rows of another one, as attention by heads and not by
  // the tokens of a sequence. What it makes in the sizes of what it is given is turned back.
  std::optional<Way> turned();
  wire::Alone why_none() const { return why_none_; }

 private:
  // What the rows that the call is given have in common: the label of their dimension, its size, and how many of it lie in a period.
  struct Cut {
    int label;
    int64_t size;
    int64_t rows;
    bool operator==(const Cut& other) const { return label == other.label && size == other.size && rows == other.rows; }
  };
  // By which the call may be divided, first the one for which the fewest bytes are copied.
  std::vector<Cut> cuts(const Strategy& strategy);
  std::optional<Way> way_by(const Cut& cut, const Strategy& strategy);
  // The periods of what is in rows, once it is in those of a label's dimension; 0 of what has none such, as a mask, and is to be copies. None where
  // something cannot be turned.
  std::optional<std::map<uint64_t, int64_t>> periods_by(int label, const Strategy& strategy) const;
  // The period of what is in rows of a dimension; none where it cannot be.
  std::optional<int64_t> rows_of(const wire::Geometry& geometry, int64_t bytes, size_t dimension) const;
  // As turned, to such periods.
  std::optional<Way> turned_to(const std::map<uint64_t, int64_t>& periods) const;
  // What it makes of the sizes of the first that is turned.
  void turn_back(const Way& divided, Way& way) const;
  std::optional<Composition> composed() const;
  bool refuse(wire::Alone reason);

  // The parts' call but for its results, and where their arguments begin.
  bool localize(const Strategy& strategy);
  // Has what is in other rows be copies; false where that may not be.
  bool copy_others(const Strategy& strategy);
  // Whether all that has the label is as long.
  bool agrees(const Strategy& strategy) const;
  // Has storages be in rows that are untouched, or are copies that the call writes to or that are to be cut, where they have the label.
  void place_targets(const Strategy& strategy);
  bool localize(size_t tensor, const Labels& labels);
  bool divide_sizes(const Strategy& strategy);
  bool place_results(const Strategy& strategy);
  bool place_result(const ResultStrategy& strategy, wire::Output& output);
  bool place_merged(Merge merge, const wire::Output& output);
  wire::Geometry& geometry_of(size_t tensor) const { return call_->tensors()[tensor]->geometry; }
  // 0 where the storage is not in rows.
  int64_t period_of(uint64_t id) const;
  uint64_t storage_of(size_t tensor) const { return words_[places_[tensor]]; }

  Gang& gang_;
  const Device& device_;
  const int64_t parts_;
  HeldLookup held_;
  const uint64_t number_;
  const wire::Template& source_;
  const c10::OperatorHandle op_;
  const Plan& plan_;
  const wire::Words& words_;
  const bool is_composed_;      // it may write to copies, on all devices alike
  bool cuts_copies_ = false;    // that have the label: what carries the call out may take rows alone
  std::vector<size_t> places_;  // where the words of each tensor argument begin
  std::vector<bool> writes_;    // whether the call writes to it
  // By one cut.
  Cut cut_{};
  std::optional<LocalCall> call_;
  std::map<uint64_t, int64_t> fresh_;  // periods of what is to be in rows
  std::set<uint64_t> copied_;          // what is in rows, and is to be copies
  wire::Alone why_none_ = wire::Alone::kNoRule;
};

}  // namespace forebay::worker
