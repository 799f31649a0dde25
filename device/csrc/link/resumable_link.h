// A TCP connection to a worker that keeps its session where it breaks: a thread makes it again, and what was under way is sent again.
// Who sends and receives meanwhile finds a socket that is full, and empty.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "forebay/resumption.h"
#include "link/byte_stream.h"
#include "link/stream_address.h"

namespace forebay {

class ResumableLink {
 public:
  struct Worker {
    StreamAddress address;
    std::string ticket;
    std::chrono::milliseconds grace;  // how long it waits for this side; 0: not at all
  };

  // `tell` is called, from a thread of its own, when the worker has not been reached for a while.
  void set_teller(std::function<void()> tell) { tell_ = std::move(tell); }

  // Takes over a socket over which the worker and this side greeted each other, and nothing else was said. `bytes` carries
  // bytes over it; none in clear.
  void begin(int socket, std::unique_ptr<ByteStream> bytes, Worker worker);
  bool is_on() const { return on_.load(std::memory_order_acquire); }
  // Nothing is sent or received any more; `why` is what who waits is told. Does not tell the worker.
  void stop(const std::string& why);
  // As before `begin`.
  void reset();
  // Tells the worker that nothing is to be resumed.
  void say_bye();
  // Why nothing comes any more; nothing as long as something may.
  std::optional<std::string> over() const;

  // As Connection's.
  std::optional<size_t> send(const uint8_t* data, size_t bytes);
  ssize_t receive(uint8_t* target, size_t bytes);
  // At most kPollMs.
  void wait(short events);
  bool has_unread() const;

  // In a forked child.
  void forked();

 private:
  using Clock = std::chrono::steady_clock;
  // An attempt to make the connection again. `over`: another has taken its place, or none is to be made.
  struct Mending {
    std::atomic<bool> over{false};
  };

  // Under the lock.
  // As send(2) and recv(2), by what carries bytes over the socket, if anything does.
  ssize_t put(const uint8_t* data, size_t bytes);
  ssize_t get(uint8_t* target, size_t bytes);
  // Whether something is to go.
  bool has_left() const { return sent_.left() > 0 || (bytes_ && bytes_->has_left()); }
  // How much must come at once to be received where it belongs.
  size_t direct_bytes_min() const { return bytes_ ? ByteStream::kRoomBytes : wire::kControlBytes + 1; }
  bool flush();
  bool acknowledge();
  ssize_t fill();
  void cut();
  void end(const std::string& why);
  void suspect();
  std::chrono::milliseconds patience() const;

  // Of the thread that makes the connection again.
  void mend(const std::shared_ptr<Mending>& mending);
  enum class Answer { kFinal, kNone, kClosed };
  Answer resume(const std::shared_ptr<Mending>& mending, int fd, std::chrono::milliseconds patience);
  void send_rest(const std::shared_ptr<Mending>& mending);
  void tell_once(bool& told) const;

  std::function<void()> tell_;
  std::atomic<bool> on_{false};

  mutable std::mutex mutex_;  // guards all that follows
  Worker worker_;
  std::atomic<int> socket_{-1};  // -1 while there is none
  std::unique_ptr<ByteStream> bytes_;
  wire::SentBytes sent_;
  wire::ReceivedBytes received_;
  std::shared_ptr<Mending> mending_;
  std::optional<std::string> over_;
  Clock::time_point moved_{};  // when bytes last went or came
  int queued_ = 0;             // of those that went, not acknowledged by the worker's host when that was last looked at
  int doubts_ = 0;             // connections that were made again since something came, because nothing did
};

}  // namespace forebay
