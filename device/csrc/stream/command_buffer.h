// Commands that were recorded and not yet sent. A command is appended whole while `mutex()` is held.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/generator.h"
#include "base/locations.h"
#include "base/meetings.h"
#include "forebay/wire.h"
#include "replay/definitions.h"
#include "replay/frames.h"
#include "replay/journal.h"
#include "stream/session_state.h"
#include "stream/tracer.h"
#include "stream/wakeup.h"

namespace forebay {

class CommandBuffer {
 public:
  // When the thread that records should send.
  enum class Due : uint8_t { kNo, kEarly, kYes };

  CommandBuffer(c10::DeviceIndex device, StreamCounters& counters, Wakeup& ticker) : device_(device), ticker_(ticker), frames_(counters.frames) {}

  std::mutex& mutex() { return mutex_; }

  // All that follows: under the lock, unless it says otherwise.

  // Where calls and allocations go.
  Tracer& tracer() { return tracer_; }
  // Where any other command is written: after one of these.
  wire::Writer& command() {  // the worker is told first of the steps that it expects
    ++changes_;
    tracer_.settle();
    return frames_.open();
  }
  wire::Writer& cut() {  // the command ends a segment (docs/wire.md)
    ++changes_;
    tracer_.cut();
    return frames_.open();
  }
  // After the append. Wakes the thread that sends.
  void appended() {
    appended_to_send();
    ticker_.wake();
  }
  // As appended, if the caller sends.
  void appended_to_send();
  // After the append of a command for whose answer a thread will wait.
  void put_question();
  // Where the next command begins; after `cut` or `command`.
  size_t place() const { return frames_.size(); }
  // The command from `begin` to here asks something; as in AskedCommand.
  void note_question(size_t begin, uint64_t request, AskedCommand::Kind kind = AskedCommand::Kind::kReads) {
    questions_.push_back({begin, frames_.size(), request, kind});
  }

  // The command from `begin` to here defines something that later commands lean on.
  void note_definition(size_t begin, Definitions::Kind kind) { definitions_.add(kind, frames_.bytes().data() + begin, frames_.size() - begin); }
  // A DOOR, which asks, or a MEMBER: whoever goes on from an image is to meet the group as well.
  void note_meeting(size_t begin, uint64_t request, AskedCommand::Kind kind) {
    note_question(begin, request, kind);
    const uint8_t* command = frames_.bytes().data() + begin;
    wire::Reader fields(command + 1, frames_.size() - begin - 1);
    if (kind == AskedCommand::Kind::kDoor) fields.varint();  // the request
    definitions_.add_meeting(fields.varint(), request, command, frames_.size() - begin);
  }
  Definitions& definitions() { return definitions_; }

  // The number of the next call, which is thereby recorded for the current thread.
  uint64_t next_call() {
    unsettled_.store(true, std::memory_order_relaxed);
    note_thread(device_, calls_);
    return calls_++;
  }
  uint64_t upcoming_call() const { return calls_; }
  RandomCalls& random_calls() { return random_calls_; }
  // Where the MEMBERs come from. Begun under the locks of receiver and sender as well; what it says is to be had without a lock.
  Meetings& meetings() { return meetings_; }

  // Moves all commands to the end of `target`, and notes them in the journal. `cuts`: the command that follows them ends a segment.
  void take(std::vector<uint8_t>& target, Journal& journal, bool cuts = false);
  // Whether a segment might end here and nothing would be cut.
  bool is_between_segments() const { return tracer_.is_between_segments(); }
  // Ends a segment, after which another worker could take over with what an image holds and these frames.
  std::vector<uint8_t> cut_for_image(std::vector<uint8_t>& target, Journal& journal);
  // What was defined is not known to the next worker.
  void forget() {
    tracer_.reset();
    definitions_.clear();
  }
  // A number that is another one after each command and each upload.
  uint64_t changes() const { return changes_; }
  // In a forked child: what the parent recorded it sends itself, and the child's worker was told nothing yet.
  void drop_recorded();
  bool has_commands() const { return frames_.size() > 0 || tracer_.has_unsaid(); }
  // The session has ended.
  void clear();

  // Without the lock.

  Due due() const { return due_.load(std::memory_order_relaxed); }
  void set_due(Due due) { due_.store(due, std::memory_order_relaxed); }
  // Whether an upload is on its way, behind which more may wait.
  void set_uploading(bool uploading) { uploading_.store(uploading, std::memory_order_relaxed); }
  // True if the worker may yet fail in something that was recorded.
  bool is_unsettled() const { return unsettled_.load(); }
  void set_unsettled(bool unsettled) { unsettled_.store(unsettled, std::memory_order_relaxed); }

 private:
  const c10::DeviceIndex device_;
  Wakeup& ticker_;
  std::mutex mutex_;
  Frames frames_;
  std::vector<AskedCommand> questions_;  // within frames_
  Tracer tracer_{frames_, device_};
  Definitions definitions_;
  RandomCalls random_calls_;
  Meetings meetings_;
  uint64_t calls_ = 0;
  uint64_t changes_ = 0;
  size_t since_question_ = 0;  // commands
  size_t since_taken_ = 0;     // commands, of those that are sent early
  bool asks_often_ = false;    // the last question came soon after the one before: the worker waits for what is recorded
  std::atomic<bool> uploading_{false};
  std::atomic<bool> unsettled_{false};
  std::atomic<Due> due_{Due::kNo};
};

}  // namespace forebay
