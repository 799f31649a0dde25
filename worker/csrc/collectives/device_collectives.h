// Which collectives of a process group its members' devices make among themselves, and the communicators for it.
//
// The devices must be as many as members, and have a library in common. Before each collective the members tell each other, over the connections of
// the group, that they call the same, hold their leases and have the same communicator: so a mistake of a program, a member that waits for its lease,
// parks or dies are what they are where hosts carry the bytes. From then on until the collective is done no order of the pool is carried out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/device_library.h"
#include "collectives/process_group.h"
#include "collectives/reduction.h"
#include "collectives/team.h"

namespace forebay::worker {

class DeviceCollectives {
 public:
  DeviceCollectives(ProcessGroup& group, GroupHost& host);

  // Whether all of a team have the same library. Its members must be known.
  bool are_possible(const Team& team) const;
  // Whether members are to meet for such a collective, as far as each can tell alone: `bytes` are those that every member knows of.
  bool are_for(const ProcessGroup::Subject& subject, uint64_t bytes) const;
  uint64_t message_bytes_min() const { return library_->bytes_min() * kMessageFactor; }

  // All of a team call this at once, with what each tells the others about. Null: it goes by hosts, as all of them then know. Throws GroupEnded, and
  // whatever a wait throws.
  struct Call {
    ProcessGroup::Subject subject;
    std::vector<ProcessGroup::Parcel> sent;      // without data
    std::vector<ProcessGroup::Parcel> received;
    uint64_t checksum = 0;                       // of what is the same for all
  };
  Communicator* meet(const Team& team, const Call& call);

  // Of several reductions at once, all alike on all members. `data` is asked for the tensors once the members are met. False: it goes by hosts.
  struct Kind {
    at::ScalarType dtype;
    wire::Reduction reduction;
    uint64_t bytes;
  };
  bool reduce_each(const std::vector<Kind>& kinds, const std::function<std::vector<Reduced>()>& data);

  // The device is left: communicators hold memory of it. They are made anew when they are needed.
  void leave_device();

 private:
  // What a member says of itself.
  struct Stand;
  struct Shared {
    std::unique_ptr<Communicator> communicator;
    uint64_t number = 0;  // of the communicator, the same at all members; 0: there is none
    uint64_t last = 0;    // of all so far
    bool declined = false;
  };
  static constexpr uint64_t kMessageFactor = 32;  // a small message does not wait for its receiver

  std::vector<Stand> stands_of(const Team& team, const Stand& own);
  bool have_own_devices(const std::vector<Stand>& stands) const;
  void make(const Team& team, const std::vector<Stand>& stands, Shared& shared);

  ProcessGroup& group_;
  GroupHost& host_;
  const std::shared_ptr<DeviceLibrary> library_;
  std::map<std::vector<size_t>, Shared> shared_;  // by the team's members
};

}  // namespace forebay::worker
