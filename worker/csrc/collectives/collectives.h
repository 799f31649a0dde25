// The process groups that a session is a member of: what torch.distributed's collectives do with its storages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <forebay/wire.h>

#include "base/replies.h"
#include "call/effects.h"
#include "collectives/process_group.h"
#include "collectives/transport.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "parallel/gang_caller.h"

namespace forebay::worker {

class Collectives {
 public:
  Collectives(GroupHost& host, const Device& device, Storages& storages, GangCaller& gang, Effects& effects, Timing& timing, Replies& replies)
      : host_(host), device_(device), storages_(storages), gang_(gang), effects_(effects), timing_(timing), replies_(replies) {}

  // Commands. They throw wire::WireError for what is not the protocol.
  void open_door(wire::Reader& in);
  void member(wire::Reader& in);
  void exchange(wire::Reader& in);
  void reduce(wire::Reader& in);
  void reduce_each(wire::Reader& in);
  void part(wire::Reader& in);

  // Whether the session was ever a member of a process group. Its worker then keeps only images that the members agree about: their collectives are done
  // again together.
  bool has_joined() const { return has_joined_; }
  // The device goes to others.
  void leave_device();
  // The session leaves its process groups: the others' collectives fail, and say why.
  void end(const std::string& why);

 private:
  struct Group {
    std::unique_ptr<ProcessGroup> members;
    std::unique_ptr<Transport> transport;
  };
  StorageRange range_of(wire::Reader& in);
  std::vector<StorageParcel> parcels_of(wire::Reader& in);
  // Carries a collective out as a call. Nothing is exchanged if something failed before: the other members hear why.
  void collect(wire::Collective what, uint64_t number, const std::vector<StorageRange>& ranges, const std::function<void(Transport&)>& carry_out);

  bool has_joined_ = false;
  GroupHost& host_;
  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
  Effects& effects_;
  Timing& timing_;
  Replies& replies_;
  std::unordered_map<uint64_t, Group> groups_;
};

}  // namespace forebay::worker
