#include "distributed/groups.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace forebay {
namespace {

using wire::Command;

std::atomic<uint64_t> next_group{1};

}  // namespace

OpenGroup open_group(CommandStream& stream, uint64_t rank, uint64_t size, std::chrono::milliseconds patience, const std::shared_ptr<MeetingPlace>& place) {
  stream.lease().need();
  const OpenGroup group{next_group.fetch_add(1), stream.generation()};
  stream.commands().meetings().add(group.number, place);
  Door door;
  uint64_t meeting = 0;
  const auto most = static_cast<int64_t>(wire::kPatienceMsMax);
  stream.ask_aside(
      Command::kDoor,
      [&](wire::Reader& body) {
        door = read_door(body);
        meeting = stream.commands().meetings().number();  // of the worker that answers
      },
      [&](wire::Writer& out) {
        out.varint(group.number);
        out.varint(rank);
        out.varint(size);
        out.varint(static_cast<uint64_t>(std::clamp<int64_t>(patience.count(), 1, most)));
      });
  place->tell(meeting, door);
  return group;
}

bool tell_member(CommandStream& stream, const OpenGroup& group, uint64_t member, uint64_t meeting, const Door& door) {
  const auto lock = stream.lock_for(group.generation);
  if (meeting != stream.commands().meetings().number()) return false;
  auto& out = stream.commands().cut();
  const size_t begin = stream.commands().place();
  put_member(out, group.number, member, door);
  stream.commands().note_meeting(begin, 0, AskedCommand::Kind::kMember);
  stream.commands().appended();
  return true;
}

void leave_group(CommandStream& stream, const OpenGroup& group) {
  const auto& session = stream.session();
  if (session.forked || !session.connected || group.generation != stream.generation()) return;
  const std::lock_guard lock(stream.commands().mutex());
  if (session.away && !session.broken) return;  // the worker that knew the group is left
  auto& out = stream.commands().cut();
  out.command(Command::kPart);
  out.varint(group.number);
  stream.commands().definitions().forget_group(group.number);
  stream.commands().appended();
}

bool collect(CommandStream& stream, uint64_t generation, const std::function<bool(wire::Writer&)>& append) {
  return stream.record(generation, [&](wire::Writer& out) {
    if (!append(out)) return false;
    stream.commands().set_due(CommandBuffer::Due::kYes);  // others wait for it
    return true;
  });
}

}  // namespace forebay
