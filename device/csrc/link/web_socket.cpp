#include "link/web_socket.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "link/http_answer.h"
#include "link/tls_greeting.h"

namespace forebay {
namespace {

constexpr char kGuid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";  // RFC 6455, section 1.3
constexpr size_t kNonceBytes = 16;
constexpr uint8_t kFinal = 0x80, kMasked = 0x80, kControl = 0x08, kLength16 = 126, kLength64 = 127;

void draw(uint8_t* target, size_t bytes) {
  if (::getrandom(target, bytes, 0) != static_cast<ssize_t>(bytes)) throw TlsError("the system gives no random numbers");
}

std::string base64_of(const uint8_t* data, size_t bytes) {
  std::string text((bytes + 2) / 3 * 4 + 1, '\0');
  openssl::digests().encode(reinterpret_cast<unsigned char*>(text.data()), data, static_cast<int>(bytes));
  text.pop_back();
  return text;
}

// What the other side answers to a key (RFC 6455, section 4.2.2).
std::string accept_of(const std::string& key) {
  const std::string text = key + kGuid;
  std::array<uint8_t, 20> hash{};
  openssl::digests().sha1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return base64_of(hash.data(), hash.size());
}

}  // namespace

void mask(uint8_t* target, const uint8_t* source, size_t bytes, const std::array<uint8_t, 4>& key) {
  uint32_t half = 0;
  std::memcpy(&half, key.data(), key.size());
  const uint64_t both = half | static_cast<uint64_t>(half) << 32;
  size_t done = 0;
  for (; done + sizeof(both) <= bytes; done += sizeof(both)) {
    uint64_t word = 0;
    std::memcpy(&word, source + done, sizeof(word));
    word ^= both;
    std::memcpy(target + done, &word, sizeof(word));
  }
  for (; done < bytes; ++done) target[done] = source[done] ^ key[done % key.size()];
}

std::unique_ptr<WebSocket> WebSocket::open(int socket, const EdgeAddress& edge, std::chrono::milliseconds patience, const std::function<void()>& check) {
  std::unique_ptr<TlsStream> tls;
  if (edge.encrypted) {
    tls = greet_by_tls(std::make_unique<TlsStream>(socket, HostName{edge.host}), socket, patience, check);
    if (!tls) return nullptr;
  }
  std::unique_ptr<WebSocket> made(new WebSocket(socket, std::move(tls)));
  return made->upgrade(edge, patience, check) ? std::move(made) : nullptr;
}

bool WebSocket::upgrade(const EdgeAddress& edge, std::chrono::milliseconds patience, const std::function<void()>& check) {
  std::array<uint8_t, kNonceBytes> nonce{};
  draw(nonce.data(), nonce.size());
  const std::string key = base64_of(nonce.data(), nonce.size());
  const std::string request = "GET " + edge.path + " HTTP/1.1\r\nHost: " + edge.authority + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: " + key +
                              "\r\nSec-WebSocket-Version: 13\r\nAuthorization: " + edge.authorization + "\r\n\r\n";
  if (request.size() > kOutBytes) throw EdgeRefused("the token is too long");
  std::memcpy(out_.get(), request.data(), request.size());
  end_ = request.size();
  if (flush() < 0) {  // few bytes, which a fresh connection takes
    errno = ECONNRESET;
    return false;
  }
  const auto answer = receive_http_answer(socket_, [this](uint8_t* bytes, size_t count) { return get(bytes, count); }, patience, check);
  if (!answer) return false;
  if (answer->status() == 401 || answer->status() == 403) throw EdgeRefused("the hub's edge does not accept the token");
  if (answer->status() == 101 && answer->header("Sec-WebSocket-Accept") == accept_of(key)) {
    std::memcpy(in_.get(), answer->rest.data(), answer->rest.size());
    filled_ = answer->rest.size();
    return true;
  }
  errno = ECONNRESET;
  return false;
}

ssize_t WebSocket::put(const uint8_t* data, size_t bytes) { return tls_ ? tls_->send(data, bytes) : ::send(socket_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); }

ssize_t WebSocket::get(uint8_t* target, size_t bytes) { return tls_ ? tls_->receive(target, bytes) : ::recv(socket_, target, bytes, MSG_DONTWAIT); }

ssize_t WebSocket::flush() {
  while (gone_ < end_) {
    const ssize_t count = put(out_.get() + gone_, end_ - gone_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return count;
    gone_ += static_cast<size_t>(count);
  }
  gone_ = end_ = 0;
  return tls_ ? tls_->flush() : 0;
}

ssize_t WebSocket::send(const uint8_t* data, size_t bytes) {
  if (has_left() && flush() < 0) return -1;
  const size_t count = std::min(bytes, kMessageBytes);
  add_frame(Opcode::kBinary, data, count);
  return flush() < 0 && errno != EAGAIN ? -1 : static_cast<ssize_t>(count);
}

std::array<uint8_t, 4> WebSocket::fresh_key() {
  std::array<uint8_t, 4> key{};
  if (keys_used_ == keys_.size()) {
    draw(keys_.data(), keys_.size());
    keys_used_ = 0;
  }
  std::memcpy(key.data(), keys_.data() + keys_used_, key.size());
  keys_used_ += key.size();
  return key;
}

// There is room.
void WebSocket::add_frame(Opcode opcode, const uint8_t* data, size_t bytes) {
  uint8_t* at = out_.get() + end_;
  *at++ = kFinal | static_cast<uint8_t>(opcode);
  const int length_bytes = bytes < kLength16 ? 0 : bytes <= UINT16_MAX ? 2 : 8;
  *at++ = kMasked | (length_bytes == 0 ? static_cast<uint8_t>(bytes) : length_bytes == 2 ? kLength16 : kLength64);
  for (int left = length_bytes; left-- > 0;) *at++ = static_cast<uint8_t>(bytes >> (8 * left));
  const auto key = fresh_key();
  std::memcpy(at, key.data(), key.size());
  at += key.size();
  mask(at, data, bytes, key);
  end_ = static_cast<size_t>(at - out_.get()) + bytes;
}

ssize_t WebSocket::receive(uint8_t* target, size_t bytes) {
  size_t done = take_in(target, bytes);
  while (!closed_ && done < bytes && (done == 0 || bytes - done >= kRoomBytes)) {
    const size_t direct = static_cast<size_t>(std::min<uint64_t>(bytes - done, payload_left_));
    const bool is_direct = read_ == filled_ && direct >= kRoomBytes;
    if (read_ == filled_) read_ = filled_ = 0;
    if (read_ > 0) {  // a header of which the rest is to come
      std::memmove(in_.get(), in_.get() + read_, filled_ - read_);
      filled_ -= std::exchange(read_, 0);
    }
    const ssize_t count = is_direct ? get(target + done, direct) : get(in_.get() + filled_, kRoomBytes - filled_);
    if (count <= 0) {
      if (done > 0 && (count == 0 || errno == EAGAIN || errno == EINTR)) break;
      return count;
    }
    if (is_direct) {
      payload_left_ -= static_cast<uint64_t>(count);
      done += static_cast<size_t>(count);
    } else {
      filled_ += static_cast<size_t>(count);
      done += take_in(target + done, bytes - done);
    }
  }
  if (done == 0 && !closed_ && bytes > 0) errno = EAGAIN;
  return done > 0 || closed_ ? static_cast<ssize_t>(done) : -1;
}

// Takes what is in `in_`, as far as it fits. How many bytes of messages that were.
size_t WebSocket::take_in(uint8_t* target, size_t bytes) {
  size_t done = 0;
  while (!closed_ && read_ < filled_) {
    if (control_left_ > 0) {
      const size_t count = std::min(control_left_, filled_ - read_);
      control_.insert(control_.end(), in_.get() + read_, in_.get() + read_ + count);
      read_ += count;
      control_left_ -= count;
      if (control_left_ == 0) take_control();
    } else if (payload_left_ > 0) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>({payload_left_, filled_ - read_, bytes - done}));
      if (count == 0) return done;
      std::memcpy(target + done, in_.get() + read_, count);
      read_ += count;
      payload_left_ -= count;
      done += count;
    } else if (!take_header()) {
      return done;
    }
  }
  return done;
}

// False where more of it is to come. What the edge may not send closes the connection, which is made again.
bool WebSocket::take_header() {
  const uint8_t* at = in_.get() + read_;
  const size_t there = filled_ - read_;
  if (there < 2) return false;
  const auto opcode = static_cast<Opcode>(at[0] & 0x0f);
  const uint8_t code = at[1] & 0x7f;
  const size_t length_bytes = code == kLength64 ? 8 : code == kLength16 ? 2 : 0;
  if (there < 2 + length_bytes) return false;
  uint64_t length = length_bytes == 0 ? code : 0;
  for (size_t index = 0; index < length_bytes; ++index) length = length << 8 | at[2 + index];
  const bool is_control = (at[0] & kControl) != 0;
  const bool is_known = is_control ? opcode == Opcode::kClose || opcode == Opcode::kPing || opcode == Opcode::kPong : opcode == Opcode::kBinary || opcode == Opcode::kContinuation;
  if (!is_known || (at[1] & kMasked) != 0 || (at[0] & 0x70) != 0 || (is_control && length > kControlBytesMax)) {
    closed_ = true;
    return true;
  }
  read_ += 2 + length_bytes;
  if (!is_control) {
    payload_left_ = length;
    return true;
  }
  control_opcode_ = opcode;
  control_.clear();
  control_left_ = static_cast<size_t>(length);
  if (control_left_ == 0) take_control();
  return true;
}

// A ping that finds no room is not answered: one later is.
void WebSocket::take_control() {
  if (control_opcode_ == Opcode::kClose) closed_ = true;
  if (control_opcode_ != Opcode::kPing || end_ + kHeaderBytesMax + control_.size() > kOutBytes) return;
  add_frame(Opcode::kPong, control_.data(), control_.size());
  [[maybe_unused]] const auto later = flush();  // what is left goes with what is sent next; a connection that broke is found then
}

}  // namespace forebay
