// The connection to another member of a process group: a socket, and where both are on one host, memory that both map.
//
// With such memory all messages go through it. The socket then says that the group ends, or wakes whoever sleeps by a byte of zero.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/socket.h"
#include "collectives/ring.h"

namespace forebay::worker {

class MemberChannel {
 public:
  MemberChannel() = default;
  explicit MemberChannel(Descriptor socket) : socket_(std::move(socket)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }
  // Leaves the socket to the caller.
  Descriptor close();

  // Memory for what is sent, to be attached to what the other side hears first. None where the host has none.
  int offer();
  // What the other side attached to what it said. False where nothing was offered, or nothing came: then the socket carries everything.
  // Throws wire::WireError where something else came.
  bool share(Descriptor attached);
  bool is_shared() const { return in_ != nullptr; }

  // How many bytes were taken or came, 0 where that must wait. None where the other side is gone.
  std::optional<size_t> send(std::array<iovec, 2> parts);
  std::optional<size_t> receive(uint8_t* target, size_t bytes);
  // Something was sent or received: the other side goes on if it sleeps.
  void wake();
  // What to poll for, to send or to receive. Memory must be looked at once more before.
  short sleep(bool sends, bool receives);
  // Whether the socket says more than that this side is woken, which it says no more.
  bool hears_end();

 private:
  Descriptor socket_;
  std::unique_ptr<Ring> out_;
  std::unique_ptr<Ring> in_;
};

}  // namespace forebay::worker
