// What a journal with a kernel of the program has another worker be sent, from the beginning and from an image, and from one of a session in a process
// group: a line each time.
#include <cstdio>
#include <string>

#include "replay/journal.h"

using namespace forebay;
using wire::Command;

namespace {

std::vector<uint8_t> frame_of(Command command, uint64_t number) {
  return framed([&](wire::Writer& out) {
    out.command(command);
    out.varint(number);
  });
}

void append(Journal& journal, Command command, uint64_t number, std::vector<AskedCommand> questions = {}) { journal.append(frame_of(command, number), std::move(questions)); }

void show(const Journal& journal, uint64_t answered) {
  std::string sent;
  Journal::Replay replay;
  replay.answered = answered;
  replay.again = [](uint64_t) { return false; };
  replay.send = [&](const std::vector<uint8_t>& frames) {
    for (size_t begin = 0; begin < frames.size(); begin += wire::kFrameHeaderBytes + wire::get_frame_header(frames.data() + begin)) {
      sent += " " + std::to_string(frames[begin + wire::kFrameHeaderBytes]);
    }
  };
  replay.compiled = [&](uint64_t request) { sent += " await(" + std::to_string(request) + ")"; };
  replay.met = [&](wire::Reader door) { sent += " met(" + std::to_string(door.varint()) + ")"; };
  replay.renew = [&](wire::Writer& out, wire::Reader member) {
    out.command(Command::kMember);
    out.varint(member.varint() + 100);
  };
  journal.replay(replay);
  std::printf("%s\n", sent.c_str());
}

}  // namespace

int main() {
  constexpr uint64_t kRequest = 7;
  Journal journal;
  journal.begin(1 << 20);
  const auto kernel = frame_of(Command::kKernel, kRequest);
  journal.append(kernel, {{wire::kFrameHeaderBytes, kernel.size(), kRequest, AskedCommand::Kind::kDefinition}});
  append(journal, Command::kLaunch, 1);
  show(journal, kRequest);
  journal.ask_image(1, {{kRequest, kernel}}, frame_of(Command::kSettings, 0), {});
  append(journal, Command::kLaunch, 2);
  journal.image_kept();
  show(journal, kRequest);
  const std::vector<DefinedMeeting> meetings{{3, 0, frame_of(Command::kMember, 3)}, {3, kRequest, frame_of(Command::kDoor, kRequest)}};
  journal.ask_image(2, {}, frame_of(Command::kSettings, 0), meetings);
  append(journal, Command::kReduce, 3);
  journal.image_failed();
  show(journal, kRequest);
  journal.ask_image(3, {}, frame_of(Command::kSettings, 0), meetings);
  append(journal, Command::kReduce, 3);
  journal.image_kept();
  show(journal, kRequest);
}
