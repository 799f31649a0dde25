#include "replay/journal.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "replay/frames.h"

namespace forebay {
namespace {

using wire::Command;

constexpr size_t kQuestionBytes = sizeof(AskedCommand) + 16;  // with its answer's hash
constexpr size_t kCommandsBytes = 1 << 20;  // of commands, at least
constexpr uint64_t kCommandsPart = 16;  // of what is kept, for commands between two uploads

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
  awaits_ = next_.has_value();
}

void Journal::begin(uint64_t bytes_max) {
  bytes_max_ = bytes_max;
  last_request_ = 0;
  set(bytes_max > 0 ? std::optional(Stretch{}) : std::nullopt, std::nullopt);
}

void Journal::drop() { set(std::nullopt, std::nullopt); }

void Journal::leave(uint64_t image, uint64_t request) {
  if (image == 0) return drop();
  set(std::move(now_), Stretch{image, {}, {}, {}, {}, 0, request});
}

void Journal::forked(uint64_t image) {
  new (&now_) std::optional<Stretch>;
  new (&next_) std::optional<Stretch>;
  set(Stretch{image, {}, {}, {}, {}, 0, 0}, std::nullopt);
}

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

bool Journal::must_await_image(uint64_t bytes) const {
  if (!now_ || !next_ || next_->left) return false;
  const uint64_t room = bytes_max_ - bytes_max_ / kCommandsPart;
  return bytes + this->bytes() > room && bytes + next_->bytes <= room;
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

void Journal::ask_image(uint64_t number, std::vector<AwaitedDefinition> awaited, std::vector<uint8_t> frames, const std::vector<DefinedMeeting>& meetings) {
  set(std::move(now_), Stretch{number, std::move(awaited), std::move(frames), block_of(meetings), {}, 0});
}

// All doors are told of before any member is waited for.
Journal::Block Journal::block_of(const std::vector<DefinedMeeting>& meetings) {
  Block block;
  for (const bool is_door : {true, false}) {
    for (const auto& one : meetings) {
      if ((one.request != 0) != is_door) continue;
      block.questions.push_back({block.bytes.size() + wire::kFrameHeaderBytes, block.bytes.size() + one.frame.size(), one.request,
                                 is_door ? AskedCommand::Kind::kDoor : AskedCommand::Kind::kMember});
      block.bytes.insert(block.bytes.end(), one.frame.begin(), one.frame.end());
    }
  }
  return block;
}

void Journal::image_kept() {
  if (next_) set(std::move(next_), std::nullopt);
}

// Where nothing else is left, the image may be there although nobody said so: who is to go on from it finds out.
void Journal::image_lost() {
  now_ || is_given_up() ? image_failed() : image_kept();
}

void Journal::choose(const std::vector<uint64_t>& there, uint64_t answered) {
  if (!awaits_last_image()) return;
  const auto is_there = [&](uint64_t image) { return std::find(there.begin(), there.end(), image) != there.end(); };
  const bool is_before = now_ && (now_->image == 0 || is_there(now_->image));
  if (is_there(next_->image) && answered >= *next_->left) return image_kept();
  is_before ? image_failed() : drop();
}

void Journal::image_failed() {
  if (now_ && next_) {
    if (next_->left) {
      now_->renumbers = true;
      now_->blocks.push_back({framed([](wire::Writer& out) { out.command(Command::kRenumber); }), {}, {}});
    }
    std::move(next_->blocks.begin(), next_->blocks.end(), std::back_inserter(now_->blocks));
    now_->bytes += next_->bytes;
  }
  set(std::move(now_), std::nullopt);
}

bool Journal::replay(const Replay& replay) const {
  if (!now_) return false;
  if (now_->image != 0 && replay.restores) {
    replay.send(framed([this](wire::Writer& out) {
      out.command(Command::kRestore);
      out.varint(now_->image);
    }));
    for (const auto& definition : now_->awaited) {
      replay.send(definition.frame);
      replay.compiled(definition.request);
    }
    replay.send(now_->first);
  }
  bool paused = false;
  replay_commands(now_->meetings, replay, paused);
  for (const Block& block : now_->blocks) {
    if (block.upload) {
      replay_upload(block, replay);
    } else {
      replay_commands(block, replay, paused);
    }
  }
  return paused;
}

void Journal::replay_upload(const Block& block, const Replay& replay) {
  for (size_t done = 0; done < block.bytes.size(); done += wire::kChunkBytesMax) {
    const size_t size = std::min<size_t>(block.bytes.size() - done, wire::kChunkBytesMax);
    replay.send(write_frame(block.upload->storage, static_cast<uint64_t>(block.upload->offset) + done, block.bytes.data() + done, size));
  }
}

void Journal::replay_commands(const Block& block, const Replay& replay, bool& paused) {
  using Kind = AskedCommand::Kind;
  std::atomic<uint64_t> frames{0};
  Frames out(frames);
  const auto flush = [&] {
    out.close();
    if (out.size() > 0) replay.send(out.bytes());
    out.clear();
  };
  size_t place = 0;
  const auto copy = [&](size_t to) {
    if (to > place) out.open().raw(block.bytes.data() + place, to - place);
    place = to;
  };
  const auto put = [&](const AskedCommand& question) {
    const wire::Reader fields(block.bytes.data() + question.begin + 1, question.end - question.begin - 1);
    const bool is_answered = question.request <= replay.answered;
    if (question.kind == Kind::kMember) {
      copy(question.begin);
      flush();
      replay.renew(out.open(), fields);
      place = question.end;
    } else if (question.kind == Kind::kDoor && is_answered) {
      copy(question.end);
      flush();
      replay.met(fields);
    } else if (question.kind == Kind::kDefinition && is_answered) {
      copy(question.end);
      flush();
      replay.compiled(question.request);
    } else if (is_answered && question.kind == Kind::kReads && !replay.again(question.request)) {
      copy(question.begin);
      auto& cut = out.open();
      cut.command(Command::kCut);
      cut.u8(0);
      place = question.end;
    } else if (!is_answered) {
      copy(question.begin);
      const bool is_aside = question.kind == Kind::kAside || question.kind == Kind::kDoor || question.kind == Kind::kDefinition;
      if (std::exchange(paused, true) || is_aside) return;
      flush();
      replay.pause();
    }
  };
  auto question = block.questions.begin();
  for (size_t begin = 0, end = 0; begin < block.bytes.size(); begin = end) {
    end = begin + frame_bytes(block.bytes.data() + begin);
    place = begin + wire::kFrameHeaderBytes;
    for (; question != block.questions.end() && question->end <= end; ++question) put(*question);
    copy(end);
    out.close();
  }
  flush();
}

}  // namespace forebay
