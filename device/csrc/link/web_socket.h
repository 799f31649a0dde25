// A WebSocket (RFC 6455) to the edge of a hub, which passes the bytes of a command stream on to a worker: binary messages, whose borders mean nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "link/byte_stream.h"

namespace forebay {

// Where the edge answers, and by which right.
struct EdgeAddress {
  bool encrypted = false;  // wss, else ws
  std::string host;        // without a port: who must show a certificate of that name
  std::string authority;   // HOST or HOST:PORT, as a request names it
  std::string path;
  std::string authorization;  // the value of the header
};

// The edge answered, and does not let this side in.
struct EdgeRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bytes masked as a client's are (RFC 6455, section 5.3).
void mask(uint8_t* target, const uint8_t* source, size_t bytes, const std::array<uint8_t, 4>& key);

class WebSocket : public ByteStream {
 public:
  // Over a socket to the edge. Null, with errno, if the connection broke or the edge cannot serve at present (ECONNRESET), or nothing came for
  // so long (ETIMEDOUT). Throws TlsError where the certificate is not the host's, EdgeRefused, and what `check` does, which is called now
  // and then.
  static std::unique_ptr<WebSocket> open(int socket, const EdgeAddress& edge, std::chrono::milliseconds patience, const std::function<void()>& check);

  ssize_t send(const uint8_t* data, size_t bytes) override;
  bool has_left() const override { return gone_ < end_ || (tls_ && tls_->has_left()); }
  ssize_t flush() override;
  ssize_t receive(uint8_t* target, size_t bytes) override;

 private:
  enum class Opcode : uint8_t { kContinuation = 0, kBinary = 2, kClose = 8, kPing = 9, kPong = 10 };
  static constexpr size_t kMessageBytes = size_t{256} << 10;  // of this side's messages at most
  static constexpr size_t kControlBytesMax = 125;
  static constexpr size_t kHeaderBytesMax = 14;
  static constexpr size_t kOutBytes = kMessageBytes + kHeaderBytesMax + 4 * (kControlBytesMax + kHeaderBytesMax);

  WebSocket(int socket, std::unique_ptr<TlsStream> tls) : socket_(socket), tls_(std::move(tls)) {}
  bool upgrade(const EdgeAddress& edge, std::chrono::milliseconds patience, const std::function<void()>& check);
  ssize_t put(const uint8_t* data, size_t bytes);
  ssize_t get(uint8_t* target, size_t bytes);
  void add_frame(Opcode opcode, const uint8_t* data, size_t bytes);
  std::array<uint8_t, 4> fresh_key();
  size_t take_in(uint8_t* target, size_t bytes);
  bool take_header();
  void take_control();

  const int socket_;
  std::unique_ptr<TlsStream> tls_;  // none in clear
  // What is to go, of which the first `gone_` went.
  std::unique_ptr<uint8_t[]> out_ = std::make_unique<uint8_t[]>(kOutBytes);
  size_t gone_ = 0;
  size_t end_ = 0;
  // Received from `read_` to `filled_`, and not looked at.
  std::unique_ptr<uint8_t[]> in_ = std::make_unique<uint8_t[]>(kRoomBytes);
  size_t read_ = 0;
  size_t filled_ = 0;
  uint64_t payload_left_ = 0;    // of the message whose header was read
  std::vector<uint8_t> control_;  // of a control frame, whose rest `control_left_` counts
  size_t control_left_ = 0;
  Opcode control_opcode_ = Opcode::kPing;
  bool closed_ = false;
  std::array<uint8_t, 256> keys_{};  // random, of which the first `keys_used_` bytes were used; getrandom(2) gives so many at once
  size_t keys_used_ = keys_.size();
};

}  // namespace forebay
