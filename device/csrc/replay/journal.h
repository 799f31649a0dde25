// What another worker needs if this one dies: an image that was kept, or none at a session's beginning, and what was sent since. Guarded by the
// sender's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/wire.h"
#include "replay/definitions.h"

namespace forebay {

// A command that is answered, within the bytes that it was sent in.
struct AskedCommand {
  enum class Kind : uint8_t {
    kReads,  // ends the segment, and has no other effect: once it was answered a CUT takes its place
    kMakes,  // ends the segment, and makes storages: it is carried out again
    kAside,  // does not end the segment, and may have any effect: it is carried out again
    kDoor,   // as kAside; other members of a process group are told its answer
    kDefinition,  // as kAside; what uses it waits for its answer
    kMember, // asks nothing: it says where another member's worker is
  };
  size_t begin;
  size_t end;
  uint64_t request;  // 0: nobody waits for an answer
  Kind kind;
};

class Journal {
 public:
  // A session begins, that has sent nothing yet. Keeps `bytes_max` at most; 0: nothing, ever.
  void begin(uint64_t bytes_max);
  // Whether another worker can be brought to where this one is.
  bool is_whole() const { return whole_.load(std::memory_order_relaxed) && !is_given_up(); }
  // Whether it can be if the image is there that this one was asked for. At any time.
  bool may_be_whole() const { return (whole_.load(std::memory_order_relaxed) || awaits_.load(std::memory_order_relaxed)) && !is_given_up(); }
  // No other worker can be until an image has been kept.
  void drop();
  // The session leaves its worker by this request, behind all that was appended. That worker keeps an image of this number last, 0: none; what the next
  // ones are sent has numbers that begin again.
  void leave(uint64_t image, uint64_t request);
  // In a forked child, whose session begins with an image of this number: what the parent held is left alone, since a thread may have been at it.
  void forked(uint64_t image);
  // No other worker ever can be. At any time; what is held goes with what is appended next.
  void give_up() { bytes_max_ = 0; }
  bool is_given_up() const { return bytes_max_ == 0; }

  // Whole frames of commands; `questions` lie within them, in order.
  void append(const std::vector<uint8_t>& frames, std::vector<AskedCommand> questions);
  // An upload.
  void write(uint64_t storage, int64_t offset, const uint8_t* data, int64_t bytes);
  // Of the last upload the first `bytes` were sent, and no more will be.
  void shorten_last_write(int64_t bytes);

  // An image was asked for, behind all that was appended. A worker with that image is to be sent the definitions and the frames first, and
  // meets the other members of process groups.
  void ask_image(uint64_t number, std::vector<AwaitedDefinition> awaited, std::vector<uint8_t> frames, const std::vector<DefinedMeeting>& meetings);
  // It is there, so what came before it is not needed any more; or it will never be; or the worker is gone, and has not said.
  void image_kept();
  void image_failed();
  void image_lost();
  bool awaits_image() const { return next_.has_value(); }
  // Whether there is no room for an upload of so many bytes, and there will be once the image that was asked for is there. Without waiting for that,
  // what came before it would be dropped, so that no other worker could go on if it never will be.
  bool must_await_image(uint64_t bytes) const;
  // Likewise of the image that the worker was to keep as the session left it: what came before is kept until it is known.
  bool awaits_last_image() const { return next_ && next_->left; }
  // These images are there. That one counts if all before it was answered.
  void choose(const std::vector<uint64_t>& there, uint64_t answered);
  // Whether a worker that has what the session was when it left another can be brought to where the session is.
  bool begins_where_it_left() const { return last() != nullptr && last()->left.has_value(); }
  // Whether numbers begin again within what a worker is sent.
  bool renumbers() const { return now_ && now_->renumbers; }
  // The image that another worker would go on from; 0: none, from the beginning.
  uint64_t image() const { return now_ ? now_->image : 0; }

  uint64_t bytes() const { return (now_ ? now_->bytes : 0) + (next_ ? next_->bytes : 0); }
  uint64_t bytes_max() const { return bytes_max_; }
  // The last question that was appended.
  uint64_t last_request() const { return last_request_; }

  // How all of it is sent again, in order.
  struct Replay {
    bool restores;      // the worker has nothing of the session yet
    uint64_t answered;  // requests up to this one are
    std::function<bool(uint64_t request)> again;  // whether a read that was answered is asked again
    std::function<void(const std::vector<uint8_t>& frames)> send;
    std::function<void()> pause;  // before the first question that is not answered, if that ends the segment
    std::function<void(wire::Reader door)> met;  // a DOOR that was answered has been sent
    std::function<void(uint64_t request)> compiled;  // a KERNEL or a PROGRAM that was answered has been sent
    std::function<void(wire::Writer& out, wire::Reader member)> renew;  // puts another MEMBER in the place of one; may wait
  };
  // Whether there is a question that is not answered.
  bool replay(const Replay& replay) const;

 private:
  struct Target {
    uint64_t storage;
    int64_t offset;
  };
  struct Block {
    std::vector<uint8_t> bytes;  // frames, or an upload's data
    std::vector<AskedCommand> questions;
    std::optional<Target> upload;
  };
  // What was sent from an image on, or from the beginning.
  struct Stretch {
    uint64_t image = 0;
    std::vector<AwaitedDefinition> awaited;  // behind the image
    std::vector<uint8_t> first;  // behind these
    Block meetings;  // likewise
    std::deque<Block> blocks;
    uint64_t bytes = 0;  // of the blocks
    std::optional<uint64_t> left{};  // it begins where the session left a worker, by this request
    bool renumbers = false;
  };

  static Block block_of(const std::vector<DefinedMeeting>& meetings);
  const Stretch* last() const { return next_ ? &*next_ : now_ ? &*now_ : nullptr; }
  Stretch* last() { return const_cast<Stretch*>(std::as_const(*this).last()); }
  void set(std::optional<Stretch> now, std::optional<Stretch> next);
  // The stretch to which so many bytes are added, if there is room for them.
  Stretch* room_for(size_t bytes);
  static void replay_upload(const Block& block, const Replay& replay);
  static void replay_commands(const Block& block, const Replay& replay, bool& paused);

  std::optional<Stretch> now_;   // none: nothing that another worker could begin with
  std::optional<Stretch> next_;  // from an image on that was asked for; what comes is added here, if there is one
  std::atomic<uint64_t> bytes_max_{0};  // of both
  uint64_t last_request_ = 0;
  std::atomic<bool> whole_{false};
  std::atomic<bool> awaits_{false};  // an image
};

}  // namespace forebay
