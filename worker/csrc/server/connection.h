// The connection to a session's client, or to the worker that an image comes from or goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include <forebay/wire.h>

#include "base/clock.h"
#include "base/inbox.h"
#include "base/replies.h"
#include "base/socket.h"
#include "server/lease_clock.h"

namespace forebay::worker {

// The connection is over.
struct ClientLost {};

class Connection final : public Replies {
 public:
  // `is_local`: the client is on this host. `wait_to_send`: returns when the socket may take more; throws ClientLost.
  Connection(bool is_local, LeaseClock& lease, std::function<void()> wait_to_send) : is_local_(is_local), lease_(lease), wait_to_send_(std::move(wait_to_send)) {}

  void take(Descriptor socket) { socket_ = std::move(socket); }
  void close() { socket_ = Descriptor(); }
  int socket() const { return socket_.get(); }
  bool is_there() const { return socket_.get() >= 0; }

  Inbox& inbox() { return inbox_; }
  const Inbox& inbox() const { return inbox_; }
  // Receives what is there of the next frame, not blocking.
  Inbox::Arrival receive() { return inbox_.receive(socket_.get()); }
  // As receive, to where it belongs; 0 if nothing is there. Throws ClientLost.
  size_t receive_into(void* target, size_t bytes);

  void send(const wire::Writer& head, const void* payload, size_t payload_bytes) override { send(head, payload, payload_bytes, -1); }
  bool can_share() const override { return is_local_; }
  void share(const wire::Writer& head, int descriptor) override { send(head, nullptr, 0, descriptor); }
  uint64_t busy_ns() override { return lease_.busy_ns(); }
  // When something was last sent.
  Clock::time_point answered_at() const { return answered_at_; }

 private:
  void send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor);

  const bool is_local_;
  LeaseClock& lease_;
  std::function<void()> wait_to_send_;
  Descriptor socket_;
  Inbox inbox_;
  Clock::time_point answered_at_{};
};

}  // namespace forebay::worker
