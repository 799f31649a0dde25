// What the command stream carries of process groups (process_group.h), and how it carries what is neither a call nor about one storage.
#include <algorithm>

#include "locations.h"
#include "recorder.h"
#include "stream.h"

namespace forebay {

using wire::Command;

GroupDoor CommandStream::open_door(uint64_t rank, uint64_t size, std::chrono::milliseconds patience) {
  need_lease();
  GroupDoor door;
  door.group = next_group_.fetch_add(1);
  door.generation = generation();
  const auto most = static_cast<int64_t>(wire::kPatienceMsMax);
  ask_aside(
      Command::kDoor,
      [&](wire::Reader& body) {
        door.address = body.string();
        const auto* ticket = body.raw(wire::kTicketBytes);
        door.ticket.assign(reinterpret_cast<const char*>(ticket), wire::kTicketBytes);
      },
      [&](wire::Writer& out) {
        out.varint(door.group);
        out.varint(rank);
        out.varint(size);
        out.varint(static_cast<uint64_t>(std::clamp<int64_t>(patience.count(), 1, most)));
      });
  return door;
}

void CommandStream::tell_member(uint64_t generation, uint64_t group, uint64_t member, const std::string& address, const std::string& ticket) {
  const auto lock = lock_for(generation);
  cut();
  pending_.command(Command::kMember);
  pending_.varint(group);
  pending_.varint(member);
  pending_.string(address);
  pending_.raw(ticket.data(), ticket.size());
  appended();
}

// Runs where Python drops a group, as `free`: it must not wait.
void CommandStream::leave_group(uint64_t generation, uint64_t group) {
  if (forked_ || !connected_ || generation != this->generation()) return;
  const std::lock_guard lock(mutex_);
  if (away_) return;  // the worker that knew it is left
  cut();
  pending_.command(Command::kPart);
  pending_.varint(group);
  appended();
}

void CommandStream::collect(uint64_t generation, const std::function<void(wire::Writer&)>& append) {
  carry(generation, [&](wire::Writer& out) {
    append(out);
    due_.store(Due::kYes, std::memory_order_relaxed);  // others wait for it
    return true;
  });
}

bool CommandStream::carry(uint64_t generation, const std::function<bool(wire::Writer&)>& append) {
  need_lease();
  check_stopped();
  uint64_t sequence = 0;
  {
    const auto lock = lock_for(generation);
    tracer_.say_frees();
    cut();
    if (!append(pending_)) return false;
    sequence = next_call();
    appended();
  }
  note_location(device_, sequence);
  send_if_due();
  if (Recorder::waits_for_each_call()) finish(sequence);
  return true;
}

}  // namespace forebay
