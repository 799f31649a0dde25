// Collectives by the devices themselves, where their members have agreed on it; else by the hosts.
#pragma once

#include <vector>

#include "collectives/device_collectives.h"
#include "collectives/host_transport.h"
#include "collectives/transport.h"

namespace forebay::worker {

class DeviceTransport final : public Transport {
 public:
  // `exchanges`: of a group whose members all have such a transport; else reductions of several storages alone go this way.
  DeviceTransport(ProcessGroup& group, GroupHost& host, const Device& device, Storages& storages, GangCaller& gang, bool exchanges)
      : group_(group), device_(device), storages_(storages), gang_(gang), exchanges_(exchanges), by_host_(group, host, device, storages, gang), shared_(group, host) {}

  void exchange(const ProcessGroup::Subject& subject, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received) override;
  void reduce(const ProcessGroup::Subject& subject, const StorageRange& input, const StorageRange& result) override;
  void reduce_each(const std::vector<StorageReduction>& each) override;
  void leave_device() override { shared_.leave_device(); }

 private:
  void exchange_messages(const ProcessGroup::Subject& subject, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received);
  // Another member and this one.
  Team with(size_t member) const;
  void carry(Communicator& communicator, const Team& team, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received);
  void broadcast(Communicator& communicator, const std::vector<StorageParcel>& sent, const std::vector<StorageParcel>& received);
  // Brings the storages whole to this device.
  void bring(const std::vector<StorageRange>& ranges);
  // Its elements, on the device.
  at::Tensor tensor_of(const StorageRange& range, at::ScalarType type);

  ProcessGroup& group_;
  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
  const bool exchanges_;
  HostTransport by_host_;
  DeviceCollectives shared_;
};

}  // namespace forebay::worker
