// How the devices of a gang hold a storage that a call is given.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "device/placement.h"

namespace forebay::worker {

struct Held {
  std::optional<Placement> placement;  // none of what one device has alone, or nobody yet
  int64_t bytes = 0;
  bool is_untouched = false;           // reads as zeros, and may be made in any placement
  bool may_be_copied = false;          // each device may have a copy of what is in rows, where a call is divided by others

  // 0 where it is not in rows.
  int64_t period() const { return placement && placement->sharing == Sharing::kRows ? placement->period : 0; }
};

using HeldLookup = std::function<Held(uint64_t id)>;

}  // namespace forebay::worker
