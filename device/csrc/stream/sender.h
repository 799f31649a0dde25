// Sends commands and uploads in the order in which they were recorded. All under `mutex()`, unless it says otherwise.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "bulk/content_hash.h"
#include "bulk/deduplication.h"
#include "bulk/shared_memory.h"
#include "stream/command_buffer.h"
#include "stream/connection.h"
#include "replay/images.h"
#include "replay/journal.h"
#include "stream/lease.h"
#include "stream/session_state.h"

namespace forebay {

// Bytes for a storage, which are sent after what was recorded before them.
struct Upload {
  uint64_t storage;
  int64_t offset;
  const uint8_t* next;
  int64_t left;
  c10::Storage source{nullptr};  // keeps the bytes alive; none if the thread that uploads waits
  uint64_t content = 0;          // its number in Contents, if the bytes are worth remembering
  int64_t in_frame = 0;          // of `left`, in a frame that has begun
  ContentHash hash{};
  int64_t bytes = 0;  // of all
  std::vector<uint8_t> before{};  // commands recorded before it, and not sent yet
};

class Sender {
 public:
  Sender(const SessionState& session, StreamCounters& counters, Connection& connection, CommandBuffer& commands, SharedMemory& shared, Contents& contents, Journal& journal, Images& images,
         const Lease& lease)
      : session_(session), counters_(counters), connection_(connection), commands_(commands), shared_(shared), contents_(contents), journal_(journal), images_(images), lease_(lease) {}

  // Taken after the receiver's, and before that of the commands.
  std::mutex& mutex() { return mutex_; }

  // Takes the lock. Sends all that was recorded; without a wait, what the socket takes now.
  void flush(Wait wait);
  // Takes the lock if it is free. As flush, without waiting and without giving up the GIL, unless uploads are on their way.
  void flush_early();
  // Without the lock.
  bool has_unsent() const { return unsent_.load(std::memory_order_relaxed); }

  // Images that the members of a process group ask for together (distributed/image_rounds.h); these take the lock. Whether one was asked for behind all
  // that was recorded. Waits until all is sent.
  bool ask_for_common_image();
  bool can_ask_for_common_image();
  bool wants_common_image();
  // Whether that image was kept; nothing as long as the worker has not said so.
  std::optional<bool> has_common_image();
  // Whether all members have theirs. False once the connection broke: then it counts, or does not, before there is another (handover.h).
  bool count_common_image(bool all_kept);

  // A connection begins.
  void begin();
  // Sends bytes before anything that was recorded.
  void send_first(std::vector<uint8_t> bytes);
  // These are under the lock. Takes over all that was recorded, and behind it what `record` does, under the lock of the commands; false if that returns
  // false, or the connection broke. No other worker can be told of it.
  bool take_alone(const std::function<bool()>& record);
  void put(const std::vector<uint8_t>& frame);
  // What was taken over, or put.
  void send_rest();
  // Takes over an upload behind all that was recorded. If it has a source, another thread may send it later.
  void add(Upload upload);
  // Whether the worker is to be waited for before so many bytes are added, since it has not kept an image yet.
  bool must_await_image(int64_t bytes);
  // Sends uploads, and what was recorded before them, in order. Whether all are sent, or will be by another connection.
  bool send_uploads(Wait wait);
  // A wait for the last upload was interrupted: it ends with the frame that has begun.
  void cut_last_upload();
  // Takes over all commands, and puts the last frame of this connection behind them. The lock of the commands is held as well.
  void take_last(const std::vector<uint8_t>& frame);
  // The connection broke, and another is to be told what the journal holds: nothing is left to be sent by this one.
  void drop_unsent();
  // Sources of uploads that were sent. To be let go without the lock, by a thread that may take the GIL.
  std::vector<c10::Storage> take_sent_sources();
  // The session has ended.
  void clear();

  // In a forked child.
  void forked();

 private:
  bool send_recorded(Wait wait);
  void take_recorded();
  void ask_for_image(bool together = false);
  bool send_all_uploads(Wait wait);
  bool send_outgoing(Wait wait);
  bool advance(Upload& upload, Wait wait);
  bool send_payload(Upload& upload, Wait wait);
  bool offer(Upload& upload, Wait wait);
  void put_write(const Upload& upload, wire::Command command, uint64_t bytes, uint64_t place);

  const SessionState& session_;
  StreamCounters& counters_;
  Connection& connection_;
  CommandBuffer& commands_;
  SharedMemory& shared_;
  Contents& contents_;
  Journal& journal_;
  Images& images_;
  const Lease& lease_;

  std::mutex mutex_;
  std::vector<uint8_t> outgoing_;  // of which the first `sent_` bytes are sent
  size_t sent_ = 0;
  std::deque<Upload> uploads_;  // after outgoing_; what was recorded since the last one is still in commands_
  std::vector<c10::Storage> sent_sources_;
  std::atomic<bool> unsent_{false};  // outgoing_ or uploads_ hold something that the socket did not take
};

}  // namespace forebay
