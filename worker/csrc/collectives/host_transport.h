// Collectives by the memory of hosts and the sockets between workers.
#pragma once

#include <vector>

#include "collectives/process_group.h"
#include "collectives/transport.h"
#include "device/device.h"
#include "device/storage.h"
#include "parallel/gang_caller.h"

namespace forebay::worker {

class HostTransport final : public Transport {
 public:
  HostTransport(ProcessGroup& group, GroupHost& host, const Device& device, Storages& storages, GangCaller& gang)
      : group_(group), host_(host), device_(device), storages_(storages), gang_(gang) {}

  void exchange(const ProcessGroup::Subject& subject, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received) override;
  // As exchange. Bytes of the host's go ahead of the others to each member, and come ahead of them.
  struct Ahead {
    std::vector<ProcessGroup::Parcel> sent;
    std::vector<ProcessGroup::Parcel> received;
  };
  void exchange_after(const ProcessGroup::Subject& subject, const Ahead& ahead, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received);
  void reduce(const ProcessGroup::Subject& subject, const StorageRange& input, const StorageRange& result) override;
  void reduce_each(const std::vector<StorageReduction>& each) override;
  void leave_device() override {}

 private:
  class HostRange;
  // The bytes of each range on the host; none where the device computes nothing.
  std::vector<HostRange> fetched(const std::vector<StorageRange>& ranges);
  // Of those from there on what was written becomes the storages'.
  void put_back(const std::vector<HostRange>& bytes, size_t first);

  ProcessGroup& group_;
  GroupHost& host_;
  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
};

}  // namespace forebay::worker
