// Sums among the devices of a gang: their workers are a process group, of which the first one tells the others what to reduce.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "collectives/device_collectives.h"
#include "collectives/process_group.h"
#include "device/device.h"
#include "gang/device_sums.h"
#include "gang/gang.h"

namespace forebay::worker {

class GangSums final : public DeviceSums, private GroupHost {
 public:
  // `host`: the first worker, as what it lets members of other groups in by.
  GangSums(Gang& gang, const Device& device, GroupHost& host);

  void make(const std::vector<Parts>& parts) override;
  void leave_device() override;

  // Each worker hears where the others let it in.
  void meet() override;
  void tell(const Pass& pass) override;
  void carry_out(const Pass& pass, uint8_t* data) override;
  void end_passes(const std::string& why) noexcept override;
  void part() override;

 private:
  void make_by_host(const std::vector<Parts>& parts);
  std::string door_address() override;
  void wait_for(std::vector<pollfd>& polled, Clock::time_point until) override;
  bool has_lease(bool) override { return true; }  // it cannot end meanwhile: the pool's orders wait

  Gang& gang_;
  const Device& device_;
  GroupHost& host_;
  std::optional<ProcessGroup> group_;
  std::optional<DeviceCollectives> by_devices_;
};

}  // namespace forebay::worker
