// What a journal has another worker be sent, a line each time: with a kernel of the program, from the beginning and from an image; from one of a session in
// a process group; of a session that leaves its worker, by what the next one has; and which uploads wait for an image.
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

void show(const Journal& journal, uint64_t answered, bool restores = true) {
  std::string sent;
  Journal::Replay replay;
  replay.restores = restores;
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

// A session leaves its worker by request 7 and names image 2. The next worker has these images, and the client these answers.
void leave(const std::vector<uint64_t>& there, uint64_t answered, uint64_t before) {
  Journal journal;
  journal.begin(1 << 20);
  append(journal, Command::kCall, 1);
  if (before != 0) {
    journal.ask_image(before, {}, frame_of(Command::kSettings, 0), {});
    journal.image_kept();
  }
  append(journal, Command::kFree, 2);
  journal.leave(2, 7);
  std::printf("%d%d%d", journal.is_whole(), journal.may_be_whole(), journal.begins_where_it_left());
  journal.choose(there, answered);
  append(journal, Command::kRead, 3);
  std::printf(" %d%d%d", journal.is_whole(), journal.renumbers(), journal.begins_where_it_left());
  show(journal, answered);
}

// Whether uploads of so many bytes are to wait for an image, of a journal of 1,600 bytes.
void await(uint64_t before, uint64_t since, bool leaves = false) {
  Journal journal;
  journal.begin(1600);
  const std::vector<uint8_t> data(1600);
  journal.write(1, 0, data.data(), static_cast<int64_t>(before));
  std::printf("%d", journal.must_await_image(1600));  // none was asked for
  leaves ? journal.leave(1, 7) : journal.ask_image(1, {}, frame_of(Command::kSettings, 0), {});
  journal.write(1, 0, data.data(), static_cast<int64_t>(since));
  for (const uint64_t bytes : {0, 500, 501, 1000, 1001, 1500, 1501}) std::printf("%d", journal.must_await_image(bytes));
  journal.image_kept();
  std::printf("%d\n", journal.must_await_image(1600));
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
  leave({2}, 7, 0);
  leave({}, 7, 0);
  leave({2}, 6, 0);      // something is not answered
  leave({1, 2}, 7, 1);
  leave({1}, 7, 1);
  leave({1, 2}, 6, 1);
  leave({2}, 6, 1);      // there is nothing to begin with
  leave({3}, 7, 1);
  journal.leave(9, 8);
  append(journal, Command::kReduce, 3);
  journal.image_kept();  // the next worker has what the session left, but not what came then
  show(journal, 8, false);
  await(1000, 0);        // there is room for 1,500 and some commands
  await(500, 500);
  await(0, 0);
  await(1200, 600);      // what was before the image is dropped already
  await(1000, 0, true);
  journal.leave(0, 9);
  std::printf("%d%d\n", journal.is_whole(), journal.may_be_whole());
}
