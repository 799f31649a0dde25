// What the command stream carries of process groups.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "forebay/wire.h"
#include "stream/stream.h"

namespace forebay {

// Where a worker lets in the others of a process group, and the ticket that they show it.
struct GroupDoor {
  uint64_t group = 0;
  uint64_t generation = 0;  // of the session
  std::string address{};
  std::string ticket{};
};

// Asks the worker to become a member, under a lease.
GroupDoor open_door(CommandStream& stream, uint64_t rank, uint64_t size, std::chrono::milliseconds patience);

// Tells the worker where another member's door is.
void tell_member(CommandStream& stream, uint64_t generation, uint64_t group, uint64_t member, const std::string& address, const std::string& ticket);

// Never waits: it runs when Python drops a group.
void leave_group(CommandStream& stream, uint64_t generation, uint64_t group);

// Records a collective, which `append` writes under the lock of the commands.
void collect(CommandStream& stream, uint64_t generation, const std::function<void(wire::Writer&)>& append);

}  // namespace forebay
