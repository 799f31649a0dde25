// What the devices of a gang make of their parts by themselves, worker with worker: sums, means, maxima and minima.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/placement.h"

namespace forebay::worker {

class DeviceSums {
 public:
  virtual ~DeviceSums() = default;

  // A storage of which all devices hold as many bytes, and all of its elements on this one.
  struct Parts {
    uint64_t id;
    Sharing sharing;
    at::Tensor own;
  };
  // Each device then holds what all make, to the same bit, and the same from run to run. All that was sent to them must be carried out before.
  // Throws RankLost where that cannot be.
  virtual void make(const std::vector<Parts>& parts) = 0;
};

}  // namespace forebay::worker
