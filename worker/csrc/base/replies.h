// What a session sends to its client.
#pragma once

#include <cstddef>
#include <cstdint>

#include <forebay/wire.h>

namespace forebay::worker {

// `payload` follows the head in the same frame and need not outlive the call.
class Replies {
 public:
  virtual ~Replies() = default;
  virtual void send(const wire::Writer& head, const void* payload, size_t payload_bytes) = 0;
  // Whether the client is on this host, and can be handed a descriptor.
  virtual bool can_share() const = 0;
  // As send, with a descriptor that the client gets a copy of.
  virtual void share(const wire::Writer& head, int descriptor) = 0;
  // How long the worker has carried out commands, up to now.
  virtual uint64_t busy_ns() = 0;

  // The request and all commands before it are carried out.
  void done(uint64_t request) {
    wire::Writer head;
    head.reply(wire::Reply::kDone);
    head.varint(request);
    head.varint(busy_ns());
    send(head, nullptr, 0);
  }
};

}  // namespace forebay::worker
