#include "collectives/member_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace forebay::worker {

namespace {

constexpr uint8_t kWake = 0;  // no message begins so

bool must_wait() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Descriptor MemberChannel::close() {
  out_.reset();
  in_.reset();
  return std::move(socket_);
}

int MemberChannel::offer() {
  try {
    out_ = std::make_unique<Ring>();
    return out_->descriptor();
  } catch (const std::system_error&) {
    return -1;
  }
}

bool MemberChannel::share(Descriptor attached) {
  if (out_ != nullptr && attached) in_ = std::make_unique<Ring>(std::move(attached));
  else out_.reset();
  return is_shared();
}

std::optional<size_t> MemberChannel::send(std::array<iovec, 2> parts) {
  if (is_shared()) {
    const size_t head = out_->put(static_cast<const uint8_t*>(parts[0].iov_base), parts[0].iov_len);
    return head + (head == parts[0].iov_len ? out_->put(static_cast<const uint8_t*>(parts[1].iov_base), parts[1].iov_len) : 0);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const auto sent = ::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return must_wait() ? std::optional<size_t>(0) : std::nullopt;
  return static_cast<size_t>(sent);
}

std::optional<size_t> MemberChannel::receive(uint8_t* target, size_t bytes) {
  if (is_shared()) return in_->take(target, bytes);
  const auto got = ::recv(socket(), target, bytes, MSG_DONTWAIT);
  if (got < 0 && must_wait()) return 0;
  return got > 0 ? std::optional<size_t>(got) : std::nullopt;
}

void MemberChannel::wake() {
  if (!is_shared()) return;
  const bool sleeps = out_->wakes();
  if (in_->wakes() || sleeps) [[maybe_unused]] const auto sent = ::send(socket(), &kWake, sizeof(kWake), MSG_NOSIGNAL | MSG_DONTWAIT);
}

short MemberChannel::sleep(bool sends, bool receives) {
  if (!is_shared()) return static_cast<short>((sends ? POLLOUT | POLLRDHUP : 0) | (receives ? POLLIN : 0));
  if (sends) out_->sleep();
  if (receives) in_->sleep();
  return sends || receives ? POLLIN | POLLRDHUP : 0;
}

bool MemberChannel::hears_end() {
  std::array<uint8_t, 64> heard;
  while (true) {
    const auto got = ::recv(socket(), heard.data(), heard.size(), MSG_DONTWAIT | MSG_PEEK);
    if (got <= 0) return got == 0 || !must_wait();
    const auto end = heard.begin() + got;
    const auto other = std::find_if(heard.begin(), end, [](uint8_t byte) { return byte != kWake; });
    [[maybe_unused]] const auto taken = ::recv(socket(), heard.data(), static_cast<size_t>(other - heard.begin()), MSG_DONTWAIT);
    if (other != end) return true;
  }
}

}  // namespace forebay::worker
