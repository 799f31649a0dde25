// The norms of the items of a list, as the clipping of gradients asks for them, where items are in rows: each device's norms of its rows are squared,
// the squares are summed over the devices, and the root of the sum is the whole's norm. In double precision: the square of a number of any other fits.
#pragma once

#include <optional>
#include <vector>

#include <forebay/wire.h>

#include "gang/gang.h"
#include "sharding/composition.h"

namespace forebay::worker {

bool is_item_norms(const c10::OperatorHandle& op);
// `local`: the call with each item as a device has it. `is_cut`: whether that is a part of it. None where the call is another one.
std::optional<Composition> composition_of_item_norms(const wire::Template& local, const std::vector<bool>& is_cut, Gang& gang);

}  // namespace forebay::worker
