#include "stream/command_buffer.h"

#include <utility>

namespace forebay {
namespace {

constexpr size_t kFrameBytesTarget = 64 << 10;  // a frame is closed after the command that passes this
constexpr size_t kSendBytesDue = 8 << 10;       // the recording thread itself sends when this much is pending
constexpr size_t kBehindUploadBytesDue = 4 << 20;  // the same behind an upload that nobody waits for
constexpr size_t kOftenCommands = 512;  // fewer between two questions: the worker waits for them
constexpr size_t kEarlyCommands = 4;    // are sent together then, unless the worker has others to read

}  // namespace

void CommandBuffer::appended_to_send() {
  ++changes_;
  if (asks_often_) {
    asks_often_ = since_question_ < kOftenCommands;
    if (++since_taken_ % kEarlyCommands == 0) set_due(Due::kEarly);
  }
  ++since_question_;
  if (frames_.last_size() > kFrameBytesTarget) frames_.close();
  if (frames_.size() > (uploading_.load(std::memory_order_relaxed) ? kBehindUploadBytesDue : kSendBytesDue)) set_due(Due::kYes);
}

void CommandBuffer::put_question() {
  asks_often_ = since_question_ < kOftenCommands;
  since_question_ = 0;
}

void CommandBuffer::take(std::vector<uint8_t>& target, Journal& journal, bool cuts) {
  if (cuts) ++changes_;  // an upload
  cuts ? tracer_.cut() : tracer_.settle();
  frames_.close();
  set_due(Due::kNo);
  auto& bytes = frames_.bytes();
  journal.append(bytes, std::exchange(questions_, {}));
  if (target.empty()) {
    std::swap(target, bytes);
  } else {
    target.insert(target.end(), bytes.begin(), bytes.end());
  }
  frames_.clear();
  since_taken_ = 0;
}

std::vector<uint8_t> CommandBuffer::cut_for_image(std::vector<uint8_t>& target, Journal& journal) {
  auto& out = cut();
  out.command(wire::Command::kCut);
  out.u8(0);
  take(target, journal);
  auto frames = definitions_.frames();
  tracer_.put_traces(frames);
  return frames;
}

void CommandBuffer::clear() {
  drop_recorded();
  calls_ = 0;
}

void CommandBuffer::drop_recorded() {
  frames_.clear();
  questions_.clear();
  set_unsettled(false);
  forget();
  random_calls_.clear();
}

}  // namespace forebay
