// What was sent in a session since it began, so that another worker can be brought to the same state if this one dies. Guarded by the
// sender's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "forebay/wire.h"

namespace forebay {

// A command that is answered, within the bytes that it was sent in.
struct AskedCommand {
  enum class Kind : uint8_t {
    kReads,  // ends the segment, and has no other effect: once it was answered a CUT takes its place
    kMakes,  // ends the segment, and makes storages: it is carried out again
    kAside,  // does not end the segment, and may have any effect: it is carried out again
  };
  size_t begin;
  size_t end;
  uint64_t request;  // 0: nobody waits for an answer
  Kind kind;
};

class Journal {
 public:
  // Begins to keep what is sent, of a session that has sent nothing yet: `bytes_max` at most. 0: keeps nothing.
  void begin(uint64_t bytes_max);
  // Whether it holds all that was sent.
  bool is_whole() const { return whole_.load(std::memory_order_relaxed); }
  // Something was sent that no other worker could be sent.
  void give_up() { whole_ = false; }

  // Whole frames of commands; `questions` lie within them, in order.
  void append(const std::vector<uint8_t>& frames, std::vector<AskedCommand> questions);
  // An upload.
  void write(uint64_t storage, int64_t offset, const uint8_t* data, int64_t bytes);
  // Of the last upload the first `bytes` were sent, and no more will be.
  void shorten_last_write(int64_t bytes);

  // Gives all of it to `send`, in order, as frames, but for reads that were answered and are not asked again. Calls `pause` before the first question
  // that is not answered, if that ends the segment. Whether there is one.
  using Send = std::function<void(const std::vector<uint8_t>&)>;
  struct Asked {
    uint64_t answered;  // requests up to this one are
    std::function<bool(uint64_t request)> again;
  };
  bool replay(const Asked& asked, const Send& send, const std::function<void()>& pause) const;

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

  bool has_room(size_t bytes);
  static void replay_upload(const Block& block, const Send& send);
  static void replay_commands(const Block& block, const Asked& asked, const Send& send, const std::function<void()>& pause, bool& paused);

  std::deque<Block> blocks_;
  uint64_t bytes_ = 0;
  uint64_t bytes_max_ = 0;
  std::atomic<bool> whole_{false};
};

}  // namespace forebay
