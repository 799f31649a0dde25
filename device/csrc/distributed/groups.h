// What the command stream carries of process groups.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/meetings.h"
#include "forebay/wire.h"
#include "stream/stream.h"

namespace forebay {

// A process group as the worker knows it.
struct OpenGroup {
  uint64_t number = 0;      // among its session's
  uint64_t generation = 0;  // of the session
};

// Has the worker become a member, under a lease, and tells the others at `place` where its door is.
OpenGroup open_group(CommandStream& stream, uint64_t rank, uint64_t size, std::chrono::milliseconds patience, const std::shared_ptr<MeetingPlace>& place);

// Tells the worker where another member's door is. False if the workers were replaced since that was heard, under the number of a meeting.
bool tell_member(CommandStream& stream, const OpenGroup& group, uint64_t member, uint64_t meeting, const Door& door);

// Never waits: it runs when Python drops a group.
void leave_group(CommandStream& stream, const OpenGroup& group);

// Records a collective, which `append` writes under the lock of the commands, unless that returns false and has written nothing.
bool collect(CommandStream& stream, uint64_t generation, const std::function<bool(wire::Writer&)>& append);

}  // namespace forebay
