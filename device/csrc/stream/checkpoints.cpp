#include "stream/checkpoints.h"

#include <mutex>

#include "base/python.h"

namespace forebay {

using wire::Command;

uint64_t Checkpoints::take(uint64_t number, bool is_named) {
  const WithoutGil free;
  const auto lock = stream_.lock_to_append();
  auto& commands = stream_.commands_;
  commands.tracer().say_frees();
  auto& out = commands.cut();
  out.command(Command::kCheckpoint);
  out.varint(number);
  out.u8(is_named);
  commands.appended();
  return stream_.new_storages(0);
}

wire::Checkpoints Checkpoints::reported(uint64_t held) {
  {
    const WithoutGil free;
    const auto lock = stream_.lock_to_append();
    stream_.commands_.tracer().say_frees();  // what became of a storage that is gone does not matter
  }
  wire::Checkpoints told;
  stream_.ask_aside(
      Command::kTellCheckpoints, [&](wire::Reader& body) { told = wire::get_checkpoints(body); }, [&](wire::Writer& out) { out.varint(held); });
  return told;
}

// Where images have no checkpoints, the worker that goes on from one lacks those that were taken before. Until there is an image that was kept behind
// this command, no worker can take the session over then.
wire::WentBack Checkpoints::go_back(uint64_t number) {
  const WithoutGil free;
  stream_.contents_.clear();
  wire::WentBack went;
  {
    CommandStream::Question question(stream_);
    const uint64_t request = stream_.new_request();
    {
      const auto lock = stream_.lock_to_append();
      auto& commands = stream_.commands_;
      commands.tracer().say_frees();
      auto& out = commands.cut();
      const size_t begin = commands.place();
      out.command(Command::kGoBack);
      out.varint(request);
      out.varint(number);
      commands.note_question(begin, request, AskedCommand::Kind::kMakes);
      commands.appended_to_send();
      question.settles();
    }
    stream_.sender_.flush(Wait::kYes);
    question.receive([&] {
      stream_.receiver_.receive(request, [&](wire::Reply reply, wire::Reader& body) {
        question.settled();
        stream_.check_answer(reply, body);
        went = wire::get_went_back(body);
      });
    });
  }
  stream_.contents_.clear();
  const std::lock_guard lock(stream_.sender_.mutex());
  const bool begins_with_image = stream_.journal_.image() != 0 || stream_.journal_.awaits_image();
  if (begins_with_image && !stream_.worker_.carries_checkpoints) stream_.journal_.drop();
  return went;
}

}  // namespace forebay
