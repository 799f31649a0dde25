// The socket to a worker.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "link/byte_stream.h"
#include "link/stream_address.h"
#include "link/resumable_link.h"
#include "stream/session_state.h"

namespace forebay {

// The connection broke, and the session goes on at another worker: whoever waits for an answer gets it from there.
struct LinkBroken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A connection over TCP broke before both sides had greeted each other: nothing was sent, and it may be made again.
struct GreetingCut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Connection {
 public:
  // Is called with the reason when the connection breaks; throws. `gone`: the worker is not to be reached, and did not say why.
  using Fail = std::function<void(const std::string& reason, bool gone)>;

  Connection(StreamCounters& counters, Fail fail) : counters_(counters), fail_(std::move(fail)) {}

  // Throws if nothing answers at the address (unix:PATH, tcp:HOST:PORT, or an edge's wss://HOST/PATH), or another than is to be trusted.
  // Closes an earlier socket.
  void open(const std::string& address, const Credentials& credentials);
  // The worker has said that it is there, and for how long it keeps the session where the connection breaks.
  void greeted(const std::string& ticket, std::chrono::milliseconds grace);
  void close();
  // Before `close`, of a session that leaves the worker.
  void say_bye() { link_.say_bye(); }
  // Ends the connection and leaves the socket open: threads that wait for it wake up.
  void shut_down();
  // In a forked child.
  void forked();
  ResumableLink& link() { return link_; }

  // The number of bytes that the socket took; 0 after an interrupt. Nothing if the socket is full.
  std::optional<size_t> send(const uint8_t* data, size_t bytes);
  // As recvmsg(2), without waiting. Keeps a descriptor that came with the bytes.
  ssize_t receive(uint8_t* target, size_t bytes);
  // The descriptor that came last; -1 if none. The caller owns it.
  int take_descriptor();
  // Waits for events of poll(2), at most kPollMs, and runs signal handlers.
  void wait(short events);

  // True if the worker has not read all that was sent.
  bool has_unread() const;
  // Fails if the worker has closed the connection.
  void check_alive();
  // The worker cannot be talked to: it refused, or says what it may not.
  [[noreturn]] void fail(const std::string& reason) { end(reason, false); }
  // The worker ended, or is not to be reached.
  [[noreturn]] void lose(const std::string& reason) { end(reason, true); }

 private:
  std::optional<size_t> send_resumably(const uint8_t* data, size_t bytes);
  [[noreturn]] void end(const std::string& reason, bool gone);

  StreamCounters& counters_;
  const Fail fail_;
  std::atomic<int> socket_{-1};
  bool is_tcp_ = false;
  bool greeting_ = false;  // over TCP, and nothing else was said
  StreamAddress address_;
  std::unique_ptr<ByteStream> bytes_;  // while both sides greet each other
  ResumableLink link_;   // has the socket, once both sides have greeted each other over TCP
  int descriptor_ = -1;  // guarded by the receiver's lock
};

}  // namespace forebay
