// What carries the bytes of a command stream over a socket, where that is more than the socket itself.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "forebay/tls.h"

namespace forebay {

// For one thread at a time.
class ByteStream {
 public:
  // With room for so many bytes, `receive` leaves nothing behind that poll(2) does not tell of.
  static constexpr size_t kRoomBytes = TlsStream::kRoomBytes;

  virtual ~ByteStream() = default;
  // As send(2) with MSG_DONTWAIT. Some of what it took may have to wait for the socket: `flush`.
  virtual ssize_t send(const uint8_t* data, size_t bytes) = 0;
  // Whether something is to go.
  virtual bool has_left() const = 0;
  // Sends it. 0 once all went; else -1, with errno as of send(2).
  virtual ssize_t flush() = 0;
  // As recv(2) with MSG_DONTWAIT. EAGAIN: all that came was received.
  virtual ssize_t receive(uint8_t* target, size_t bytes) = 0;
};

// TLS with the worker itself.
class TlsByteStream : public ByteStream {
 public:
  explicit TlsByteStream(std::unique_ptr<TlsStream> tls) : tls_(std::move(tls)) {}

  ssize_t send(const uint8_t* data, size_t bytes) override { return tls_->send(data, bytes); }
  bool has_left() const override { return tls_->has_left(); }
  ssize_t flush() override { return tls_->flush(); }
  ssize_t receive(uint8_t* target, size_t bytes) override { return tls_->receive(target, bytes); }

 private:
  std::unique_ptr<TlsStream> tls_;
};

}  // namespace forebay
