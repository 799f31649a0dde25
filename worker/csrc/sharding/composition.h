// Calls that mix the rows of a batch, composed of calls that each device carries out on its own rows, and of sums between them: what PyTorch defines them as.
//
// Every device makes a draw whole, from the call's own seed and counter, and keeps its rows of it. A batch norm in training normalises by the mean and
// variance of all rows, which come of those of each device's. A mean that divides by a count of its own is a quotient of two sums.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

#include "device/device.h"
#include "device/placement.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "strategies/strategy.h"

namespace forebay::worker {

// What carries out a call in steps. Storages that it makes and is done with are drafts.
struct Composition {
  // A storage that it makes, whichever step does.
  struct Made {
    Placement placement;
    int64_t bytes = 0;             // of the whole
    std::optional<size_t> result;  // which new storage of the call it is; none of a draft
    bool from_zeros = false;       // no step makes it: it is there from the beginning, and zeros
  };
  // On one device.
  struct Use {
    const wire::Words& words;          // of the call, as this device has them
    const std::vector<uint64_t>& ids;  // of what is made
    int place;
  };
  using Source = std::function<uint64_t(const Use&)>;
  struct Step {
    uint64_t definition = 0;      // of its template
    std::vector<Source> words;
    std::vector<size_t> makes;    // in the order of its words
    std::vector<size_t> sums;     // what is summed over the devices before it
    bool writes = false;          // to what was there before the call: all before it is known to be carried out
  };

  std::vector<Made> made;
  std::vector<Step> steps;
  std::function<bool(const wire::Words&)> fits;  // whether it serves a call with such numbers; none: any

  // Of drafts and results, at most, on a device.
  int64_t bytes(int64_t devices) const;
  wire::Words words_of(const Step& step, const Use& use) const;
  // The storages of a call: its new ones, and for drafts such as no storage has.
  std::vector<uint64_t> ids(const std::vector<uint64_t>& results, const Storages& storages) const;
};

// A tensor argument of a call whose storage is in rows, by its number among the tensors.
struct RowsArgument {
  size_t tensor;
  int64_t period;
};

// A call that is to be divided.
struct DividedCall {
  const wire::Template& whole;
  const wire::Template& local;  // as each device has its arguments
  c10::OperatorHandle op;
  int64_t parts;
  std::vector<RowsArgument> rows;
};

// Whether nothing but a composition may divide the call.
bool is_composed(const wire::Template& call, const c10::OperatorHandle& op);
// Which dimensions of such a call may be divided; it says nothing of its results. None where no composition serves it.
std::optional<Strategy> strategy_of_composed(const wire::Template& call, const c10::OperatorHandle& op);
// None where none serves the call. Throws wire::WireError as making a plan does.
std::optional<Composition> composition_of(const DividedCall& call, Gang& gang, const Device& device);

}  // namespace forebay::worker
