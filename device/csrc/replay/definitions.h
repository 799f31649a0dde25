// What later commands lean on beside the steps: operators, templates, settings, kernels and programs, as they were defined. Guarded by the lock of the commands.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "forebay/wire.h"
#include "replay/frames.h"

namespace forebay {

// A KERNEL or a PROGRAM, in a frame of its own. A worker must have answered it before what it defines is used.
struct AwaitedDefinition {
  uint64_t request;
  std::vector<uint8_t> frame;
};

// A DOOR or a MEMBER, in a frame of its own, of a process group that the session is in.
struct DefinedMeeting {
  uint64_t group;
  uint64_t request;  // 0: a MEMBER
  std::vector<uint8_t> frame;
};

class Definitions {
 public:
  enum class Kind : uint8_t { kOperator, kTemplate, kSettings, kTime };

  // A command that was recorded. Of settings, and of what the worker is to note of times, the last one holds.
  void add(Kind kind, const uint8_t* command, size_t bytes) {
    if (kind == Kind::kSettings || kind == Kind::kTime) {
      auto& last = kind == Kind::kTime ? time_ : settings_;
      last.assign(command, command + bytes);
    } else {
      auto& frames = kind == Kind::kOperator ? operators_ : templates_;
      frames.open().raw(command, bytes);
      if (frames.last_size() > kFrameBytes) frames.close();
    }
  }
  // A KERNEL or a PROGRAM that the worker has compiled.
  void add_awaited(uint64_t request, const wire::Writer& command) {
    awaited_.push_back({request, framed([&](wire::Writer& out) { out.raw(command.bytes().data(), command.size()); })});
  }
  void add_meeting(uint64_t group, uint64_t request, const uint8_t* command, size_t bytes) {
    meetings_.push_back({group, request, framed([&](wire::Writer& out) { out.raw(command, bytes); })});
  }
  // The session leaves a process group.
  void forget_group(uint64_t group) { std::erase_if(meetings_, [group](const DefinedMeeting& one) { return one.group == group; }); }
  void forget_templates() { templates_.clear(); }
  void clear() {
    for (Frames* frames : {&operators_, &templates_}) frames->clear();
    awaited_.clear();
    meetings_.clear();
    settings_.clear();
    time_.clear();
  }

  const std::vector<AwaitedDefinition>& awaited() const { return awaited_; }
  const std::vector<DefinedMeeting>& meetings() const { return meetings_; }
  // All others, as frames for a worker that was told nothing yet.
  std::vector<uint8_t> frames() {
    Frames last(uncounted_);
    for (const auto* command : {&settings_, &time_}) last.open().raw(command->data(), command->size());
    std::vector<uint8_t> all;
    for (Frames* frames : {&operators_, &templates_, &last}) {
      frames->close();
      all.insert(all.end(), frames->bytes().begin(), frames->bytes().end());
    }
    return all;
  }

 private:
  static constexpr size_t kFrameBytes = 64 << 10;

  std::atomic<uint64_t> uncounted_{0};
  Frames operators_{uncounted_};
  Frames templates_{uncounted_};
  std::vector<AwaitedDefinition> awaited_;
  std::vector<DefinedMeeting> meetings_;
  std::vector<uint8_t> settings_;
  std::vector<uint8_t> time_;
};

}  // namespace forebay
