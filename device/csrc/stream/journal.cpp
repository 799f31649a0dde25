#include "stream/journal.h"

#include <algorithm>
#include <utility>

#include "stream/frames.h"

namespace forebay {
namespace {

using wire::Command;

constexpr size_t kQuestionBytes = sizeof(AskedCommand) + 16;  // with its answer's hash
constexpr size_t kBlockBytes = 1 << 20;  // of commands, at least

size_t frame_bytes(const uint8_t* frame) { return wire::kFrameHeaderBytes + wire::get_frame_header(frame); }

std::vector<uint8_t> write_frame(uint64_t storage, uint64_t offset, const uint8_t* data, size_t bytes) {
  return framed([&](wire::Writer& out) {
    out.command(Command::kWrite);
    out.varint(storage);
    out.varint(offset);
    out.varint(bytes);
    out.raw(data, bytes);
  });
}

}  // namespace

void Journal::begin(uint64_t bytes_max) {
  blocks_.clear();
  bytes_ = 0;
  bytes_max_ = bytes_max;
  whole_ = bytes_max > 0;
}

// False where nothing is kept any more.
bool Journal::has_room(size_t bytes) {
  if (whole_ && bytes_ + bytes <= bytes_max_) {
    bytes_ += bytes;
    return true;
  }
  if (whole_ || !blocks_.empty()) begin(0);
  return false;
}

void Journal::append(const std::vector<uint8_t>& frames, std::vector<AskedCommand> questions) {
  if (frames.empty() || !has_room(frames.size() + questions.size() * kQuestionBytes)) return;
  if (blocks_.empty() || blocks_.back().upload || blocks_.back().bytes.size() > kBlockBytes) blocks_.emplace_back();
  Block& block = blocks_.back();
  for (auto& question : questions) {
    question.begin += block.bytes.size();
    question.end += block.bytes.size();
    block.questions.push_back(question);
  }
  block.bytes.insert(block.bytes.end(), frames.begin(), frames.end());
}

void Journal::write(uint64_t storage, int64_t offset, const uint8_t* data, int64_t bytes) {
  if (!has_room(static_cast<size_t>(bytes))) return;
  blocks_.push_back({{data, data + bytes}, {}, Target{storage, offset}});
}

void Journal::shorten_last_write(int64_t bytes) {
  if (blocks_.empty() || !blocks_.back().upload) return;
  auto& data = blocks_.back().bytes;
  bytes_ -= data.size() - static_cast<size_t>(bytes);
  data.resize(static_cast<size_t>(bytes));
}

bool Journal::replay(const Asked& asked, const Send& send, const std::function<void()>& pause) const {
  bool paused = false;
  for (const Block& block : blocks_) {
    if (block.upload) {
      replay_upload(block, send);
    } else {
      replay_commands(block, asked, send, pause, paused);
    }
  }
  return paused;
}

void Journal::replay_upload(const Block& block, const Send& send) {
  for (size_t done = 0; done < block.bytes.size(); done += wire::kChunkBytesMax) {
    const size_t size = std::min<size_t>(block.bytes.size() - done, wire::kChunkBytesMax);
    send(write_frame(block.upload->storage, static_cast<uint64_t>(block.upload->offset) + done, block.bytes.data() + done, size));
  }
}

void Journal::replay_commands(const Block& block, const Asked& asked, const Send& send, const std::function<void()>& pause, bool& paused) {
  std::atomic<uint64_t> frames{0};
  Frames out(frames);
  const auto copy = [&](size_t from, size_t to) {
    if (to > from) out.open().raw(block.bytes.data() + from, to - from);
  };
  const auto flush = [&] {
    out.close();
    if (out.size() > 0) send(out.bytes());
    out.clear();
  };
  auto question = block.questions.begin();
  for (size_t begin = 0, end = 0; begin < block.bytes.size(); begin = end) {
    end = begin + frame_bytes(block.bytes.data() + begin);
    size_t place = begin + wire::kFrameHeaderBytes;
    for (; question != block.questions.end() && question->end <= end; ++question) {
      const bool is_answered = question->request <= asked.answered;
      if (is_answered && (question->kind != AskedCommand::Kind::kReads || asked.again(question->request))) continue;
      copy(place, question->begin);
      place = is_answered ? question->end : question->begin;
      if (is_answered) {
        auto& cut = out.open();
        cut.command(Command::kCut);
        cut.u8(0);
      } else if (!std::exchange(paused, true) && question->kind != AskedCommand::Kind::kAside) {
        flush();
        pause();
      }
    }
    copy(place, end);
    out.close();
  }
  flush();
}

}  // namespace forebay
