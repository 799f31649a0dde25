// How the bytes of a collective get from one member of a process group to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>
#include <forebay/wire.h>

#include "collectives/process_group.h"

namespace forebay::worker {

// Bytes of a storage.
struct StorageRange {
  uint64_t id = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A message to a member, or from it.
struct StorageParcel {
  size_t member = 0;
  StorageRange range;
};

// Of elements of a type.
struct StorageReduction {
  c10::ScalarType dtype;
  wire::Reduction reduction;
  StorageRange range;
};

// Takes what it sends from storages, and puts what it receives into them; host memory and sockets are one way. Returns when all is done, under a
// lease. Throws wire::WireError for what is not the protocol, GroupEnded, CommandError and what the device throws.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void exchange(const ProcessGroup::Subject& subject, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received) = 0;
  // The result becomes the reduction of all members' inputs; of `kReduceScatter`, of this member's part of them.
  virtual void reduce(const ProcessGroup::Subject& subject, const StorageRange& input, const StorageRange& result) = 0;
  // Each becomes the reduction of all members' own.
  virtual void reduce_each(const std::vector<StorageReduction>& each) = 0;
  // The device goes to others: nothing of it is kept.
  virtual void leave_device() = 0;
};

}  // namespace forebay::worker
