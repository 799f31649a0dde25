// What the devices of a gang make of their parts by themselves, worker with worker: sums, means, maxima and minima.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
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
  // The devices go to others: nothing of them is kept.
  virtual void leave_device() = 0;

  // Bytes of a storage that one device sends to another, into a storage of the same size.
  struct Pass {
    int from;
    int to;
    uint64_t source;
    uint64_t target;
    int64_t bytes;
  };
  // Before the first pass is told: all must be settled. Throws RankLost.
  virtual void meet() = 0;
  // Tells the other devices of one, each in its turn among the commands that it is sent.
  virtual void tell(const Pass& pass) = 0;
  // This device's side of one that was told; `data`: its bytes, in the host's memory. Throws PassEnded where the other device stopped.
  virtual void carry_out(const Pass& pass, uint8_t* data) = 0;
  // After a device has stopped before all passes were carried out: has the others stop, too. Once all are settled, `part` has them meet anew.
  virtual void end_passes(const std::string& why) noexcept = 0;
  virtual void part() = 0;
};

// A device stopped in the middle of what it and others were told.
struct PassEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace forebay::worker
