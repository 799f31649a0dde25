#include "stream/connection.h"

#include <c10/util/Exception.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/python.h"
#include "base/waiting.h"

namespace forebay {
namespace {

constexpr std::chrono::milliseconds kConnectPatience(10'000);

bool is_full() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

void Connection::open(const std::string& address, const Credentials& credentials) {
  close();
  link_.reset();
  is_tcp_ = address.rfind("unix:", 0) != 0;
  if (!is_tcp_) {
    socket_ = connect_unix(address.substr(5));
    return;
  }
  address_ = StreamAddress(address, credentials);
  const int fd = address_.tcp().connect(kConnectPatience, check_signals);
  TORCH_CHECK(fd >= 0, "the worker at ", address, " cannot be reached: ", std::strerror(errno));
  socket_ = fd;
  greeting_ = true;
  if (address_.is_clear()) return;
  try {
    bytes_ = address_.greet(fd, kConnectPatience, check_signals);
  } catch (const TlsError& error) {
    TORCH_CHECK(false, "the worker at ", address, " is not trusted: ", error.what());
  }
  if (!bytes_) lose(std::strerror(errno));
}

void Connection::greeted(const std::string& ticket, std::chrono::milliseconds grace) {
  greeting_ = false;
  if (is_tcp_ && (bytes_ || grace.count() > 0)) link_.begin(socket_.exchange(-1), std::move(bytes_), {address_, ticket, grace});
}

void Connection::close() {
  if (link_.is_on()) link_.stop("it was closed");
  bytes_.reset();
  const int fd = socket_.exchange(-1);
  if (fd >= 0) ::close(fd);
  greeting_ = false;
}

void Connection::shut_down() {
  if (link_.is_on()) link_.stop("it was closed");
  const int fd = socket_.load();
  if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
}

void Connection::forked() {
  link_.forked();
  close();
}

std::optional<size_t> Connection::send(const uint8_t* data, size_t bytes) {
  if (link_.is_on()) return send_resumably(data, bytes);
  const ssize_t count = bytes_ ? bytes_->send(data, bytes) : ::send(socket_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0 && is_full()) return std::nullopt;
  if (count < 0 && errno != EINTR) lose(std::strerror(errno));
  if (count <= 0) return 0;
  counters_.bytes_sent.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
  return static_cast<size_t>(count);
}

std::optional<size_t> Connection::send_resumably(const uint8_t* data, size_t bytes) {
  const auto count = link_.send(data, bytes);
  if (count) {
    counters_.bytes_sent.fetch_add(*count, std::memory_order_relaxed);
  } else if (const auto why = link_.over()) {
    lose(*why);
  }
  return count;
}

ssize_t Connection::receive(uint8_t* target, size_t bytes) {
  if (link_.is_on()) {
    const ssize_t count = link_.receive(target, bytes);
    if (count > 0) counters_.bytes_received.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
    return count;
  }
  if (bytes_) return bytes_->receive(target, bytes);
  iovec part{target, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = ::recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count <= 0) return count;
  const cmsghdr* attached = CMSG_FIRSTHDR(&message);
  if (attached != nullptr && attached->cmsg_level == SOL_SOCKET && attached->cmsg_type == SCM_RIGHTS) {
    if (descriptor_ >= 0) ::close(descriptor_);
    std::memcpy(&descriptor_, CMSG_DATA(attached), sizeof(descriptor_));
  }
  counters_.bytes_received.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
  return count;
}

int Connection::take_descriptor() { return std::exchange(descriptor_, -1); }

void Connection::wait(short events) {
  if (link_.is_on()) {
    link_.wait(events);
    check_signals();
    if (const auto why = link_.over()) lose(*why);
    return;
  }
  pollfd entry{socket_, events, 0};
  const int ready = ::poll(&entry, 1, kPollMs);
  if (ready < 0 && errno != EINTR) lose(std::strerror(errno));
  if (ready > 0) return;
  check_signals();
  if (socket_ < 0) lose("it was closed");
}

bool Connection::has_unread() const {
  if (link_.is_on()) return link_.has_unread();
  int unread = 0;
  return ::ioctl(socket_, SIOCOUTQ, &unread) == 0 && unread > 0;
}

void Connection::check_alive() {
  pollfd entry{socket_, POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) lose("the worker ended");
}

void Connection::end(const std::string& reason, bool gone) {
  if (greeting_ && gone) throw GreetingCut(reason);
  fail_(reason, gone);
  TORCH_CHECK(false, "the connection to the worker broke (", reason, ")");
}

}  // namespace forebay
