#include "distributed/groups.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace forebay {
namespace {

using wire::Command;

std::atomic<uint64_t> next_group{1};

}  // namespace

GroupDoor open_door(CommandStream& stream, uint64_t rank, uint64_t size, std::chrono::milliseconds patience) {
  stream.lease().need();
  GroupDoor door;
  door.group = next_group.fetch_add(1);
  door.generation = stream.generation();
  const auto most = static_cast<int64_t>(wire::kPatienceMsMax);
  stream.ask_aside(
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

void tell_member(CommandStream& stream, uint64_t generation, uint64_t group, uint64_t member, const std::string& address, const std::string& ticket) {
  const auto lock = stream.lock_for(generation);
  auto& out = stream.commands().cut();
  out.command(Command::kMember);
  out.varint(group);
  out.varint(member);
  out.string(address);
  out.raw(ticket.data(), ticket.size());
  stream.commands().appended();
}

void leave_group(CommandStream& stream, uint64_t generation, uint64_t group) {
  const auto& session = stream.session();
  if (session.forked || !session.connected || generation != stream.generation()) return;
  const std::lock_guard lock(stream.commands().mutex());
  if (session.away) return;  // the worker that knew the group is left
  auto& out = stream.commands().cut();
  out.command(Command::kPart);
  out.varint(group);
  stream.commands().appended();
}

void collect(CommandStream& stream, uint64_t generation, const std::function<void(wire::Writer&)>& append) {
  stream.record(generation, [&](wire::Writer& out) {
    append(out);
    stream.commands().set_due(CommandBuffer::Due::kYes);  // others wait for it
    return true;
  });
}

}  // namespace forebay
