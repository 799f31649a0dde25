// A socket to a client or another worker, in clear or by TLS.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <forebay/tls.h>

#include "base/socket.h"

namespace forebay::worker {

class Channel {
 public:
  Channel() = default;
  // In clear.
  Channel(Descriptor socket) : socket_(std::move(socket)) {}

  // From now on TLS is spoken: as the worker that is reached, or with the worker whose certificate has this hash.
  void encrypt(const TlsContext& own) { tls_ = std::make_unique<TlsStream>(own, get()); }
  void encrypt(const std::string& certificate) { tls_ = std::make_unique<TlsStream>(get(), certificate); }
  TlsStream::Greeting greet() { return tls_->greet(); }

  int get() const { return socket_.get(); }
  // The socket, of which nothing else is to be done by this.
  Descriptor take_socket() { return std::move(socket_); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  bool is_encrypted() const { return tls_ != nullptr; }

  // As send(2) and recv(2), with MSG_DONTWAIT. Some of what was sent may have to wait for the socket: `flush`.
  ssize_t send(const void* data, size_t bytes) { return tls_ ? tls_->send(data, bytes) : ::send(get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT); }
  ssize_t receive(void* target, size_t bytes) { return tls_ ? tls_->receive(target, bytes) : ::recv(get(), target, bytes, MSG_DONTWAIT); }
  bool has_left() const { return tls_ && tls_->has_left(); }
  // 0 once all went; else -1, with errno as of send(2).
  ssize_t flush() { return tls_ ? tls_->flush() : 0; }
  // With room for so many bytes, `receive` leaves nothing behind that poll(2) does not tell of.
  size_t room_bytes() const { return tls_ ? TlsStream::kRoomBytes : 1; }

 private:
  Descriptor socket_;
  std::unique_ptr<TlsStream> tls_;
};

}  // namespace forebay::worker
