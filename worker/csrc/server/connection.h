// The connection to a session's client, or to the worker that an image comes from or goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <forebay/resumption.h>
#include <forebay/wire.h>

#include "base/channel.h"
#include "base/clock.h"
#include "base/inbox.h"
#include "base/replies.h"
#include "server/lease_clock.h"

namespace forebay::worker {

// The connection is over.
struct ClientLost {};

class Connection final : public Replies {
 public:
  // `is_local`: the client is on this host. `wait_to_send`: returns when the socket may take more; throws ClientLost.
  Connection(bool is_local, LeaseClock& lease, std::function<void()> wait_to_send) : is_local_(is_local), lease_(lease), wait_to_send_(std::move(wait_to_send)) {}

  void take(Channel channel) { channel_ = std::move(channel); }
  // Takes a client that may come back over another connection, if it says that it does.
  void admit(Channel channel);
  void close();

  // The client is back over this connection, and has received so much. Throws wire::WireError, and changes nothing, if that cannot be.
  void resume(Channel& channel, uint64_t received);
  // Nothing came from the client but its greeting.
  bool is_untouched() const { return link_ && link_->received.received() == 0; }
  // Whether the client comes back, unless it says goodbye.
  bool is_resumable() const { return link_ && link_->resumes && !link_->is_over; }
  // The connection broke. Throws ClientLost if the client does not come back.
  void lose();
  // Whether what the client sends is to be taken in while something else is waited for.
  bool has_room() const { return link_ && link_->received.has_room(); }
  // The client is waited for no longer.
  void resume_no_more() {
    if (link_) link_->is_over = true;
  }
  // Takes in what the client sent, for later, and sends on what is to go. Throws ClientLost.
  void drain();

  int socket() const { return channel_.get(); }
  bool is_there() const { return static_cast<bool>(channel_); }

  Inbox& inbox() { return inbox_; }
  const Inbox& inbox() const { return inbox_; }
  // Receives what is there of the next frame, not blocking.
  Inbox::Arrival receive() { return receive(inbox_); }
  // As that, to another place.
  Inbox::Arrival receive(Inbox& inbox) {
    return inbox.receive([this](uint8_t* target, size_t bytes) { return take_in(target, bytes); });
  }
  // As receive, to where it belongs; 0 if nothing is there. Throws ClientLost.
  size_t receive_into(void* target, size_t bytes);

  void send(const wire::Writer& head, const void* payload, size_t payload_bytes) override { send(head, payload, payload_bytes, -1); }
  bool can_share() const override { return is_local_ && !link_; }
  void share(const wire::Writer& head, int descriptor) override { send(head, nullptr, 0, descriptor); }
  uint64_t busy_ns() override { return lease_.busy_ns(); }
  // When something was last sent.
  Clock::time_point answered_at() const { return answered_at_; }

 private:
  // What makes a client's connection one that is resumed.
  struct Link {
    wire::SentBytes sent;
    wire::ReceivedBytes received;
    bool resumes = false;  // as the client has said
    bool is_over = false;
  };

  void send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor);
  void send_by_tls(const wire::Writer& head, const void* payload, size_t payload_bytes);
  void send_resumably(const wire::Writer& head, const void* payload, size_t payload_bytes);
  // Whether all went, or there is no connection.
  bool flush();
  void acknowledge();
  // As recv(2).
  ssize_t take_in(uint8_t* target, size_t bytes);
  ssize_t fill();
  void take_control(wire::Control control, uint64_t count);

  const bool is_local_;
  LeaseClock& lease_;
  std::function<void()> wait_to_send_;
  Channel channel_;  // none while a client is away that comes back
  std::optional<Link> link_;
  Inbox inbox_;
  Clock::time_point answered_at_{};
};

}  // namespace forebay::worker
