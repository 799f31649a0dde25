#include "replay/journal.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "replay/frames.h"

namespace forebay {
namespace {

using wire::Command;

constexpr size_t kQuestionBytes = sizeof(AskedCommand) + 16;  // with its answer's hash
constexpr size_t kCommandsBytes = 1 << 20;  // of commands, at least

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

void Journal::set(std::optional<Stretch> now, std::optional<Stretch> next) {
  now_ = std::move(now);
  next_ = std::move(next);
  whole_ = now_.has_value();
}

void Journal::begin(uint64_t bytes_max) {
  bytes_max_ = bytes_max;
  last_request_ = 0;
  set(bytes_max > 0 ? std::optional(Stretch{}) : std::nullopt, std::nullopt);
}

void Journal::drop() { set(std::nullopt, std::nullopt); }

// Where there is too much, what was sent since an image that is on its way may still do.
Journal::Stretch* Journal::room_for(size_t bytes) {
  if (bytes + this->bytes() > bytes_max_) set(std::nullopt, std::move(next_));
  if (bytes + this->bytes() > bytes_max_) drop();
  Stretch* stretch = last();
  if (stretch != nullptr) stretch->bytes += bytes;
  return stretch;
}

void Journal::append(const std::vector<uint8_t>& frames, std::vector<AskedCommand> questions) {
  Stretch* stretch = frames.empty() ? nullptr : room_for(frames.size() + questions.size() * kQuestionBytes);
  if (stretch == nullptr) return;
  if (!questions.empty()) last_request_ = std::max(last_request_, questions.back().request);
  auto& blocks = stretch->blocks;
  if (blocks.empty() || blocks.back().upload || blocks.back().bytes.size() > kCommandsBytes) blocks.emplace_back();
  Block& block = blocks.back();
  for (auto& question : questions) {
    question.begin += block.bytes.size();
    question.end += block.bytes.size();
    block.questions.push_back(question);
  }
  block.bytes.insert(block.bytes.end(), frames.begin(), frames.end());
}

void Journal::write(uint64_t storage, int64_t offset, const uint8_t* data, int64_t bytes) {
  Stretch* stretch = room_for(static_cast<size_t>(bytes));
  if (stretch != nullptr) stretch->blocks.push_back({{data, data + bytes}, {}, Target{storage, offset}});
}

void Journal::shorten_last_write(int64_t bytes) {
  Stretch* stretch = last();
  if (stretch == nullptr || stretch->blocks.empty() || !stretch->blocks.back().upload) return;
  auto& data = stretch->blocks.back().bytes;
  stretch->bytes -= data.size() - static_cast<size_t>(bytes);
  data.resize(static_cast<size_t>(bytes));
}

void Journal::ask_image(uint64_t number, std::vector<uint8_t> frames) { next_ = Stretch{number, std::move(frames), {}, 0}; }

void Journal::image_kept() {
  if (next_) set(std::move(next_), std::nullopt);
}

void Journal::image_failed() {
  if (now_ && next_) {
    std::move(next_->blocks.begin(), next_->blocks.end(), std::back_inserter(now_->blocks));
    now_->bytes += next_->bytes;
  }
  next_.reset();
}

bool Journal::replay(const Asked& asked, const Send& send, const std::function<void()>& pause) const {
  if (!now_) return false;
  if (now_->image != 0) {
    send(framed([this](wire::Writer& out) {
      out.command(Command::kRestore);
      out.varint(now_->image);
    }));
    send(now_->first);
  }
  bool paused = false;
  for (const Block& block : now_->blocks) {
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
