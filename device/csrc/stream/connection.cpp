#include "stream/connection.h"

#include <c10/util/Exception.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/python.h"
#include "base/waiting.h"

namespace forebay {
namespace {

constexpr int kConnectMs = 10'000;

bool is_full() { return errno == EAGAIN || errno == EWOULDBLOCK; }

int connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TORCH_CHECK(path.size() < sizeof(address.sun_path), "the worker's socket path is longer than ", sizeof(address.sun_path), " bytes: ", path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TORCH_CHECK(fd >= 0, "cannot create a socket: ", std::strerror(errno));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    ::close(fd);
    TORCH_CHECK(false, "the worker at unix:", path, " cannot be reached: ", std::strerror(error));
  }
  return fd;
}

int connect_tcp(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  TORCH_CHECK(status == 0, "the worker's host ", host, " cannot be found: ", ::gai_strerror(status));
  int fd = -1, error = 0;
  for (const addrinfo* entry = found; entry != nullptr && fd < 0; entry = entry->ai_next) {
    fd = ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol);
    if (fd < 0) continue;
    const timeval limit{kConnectMs / 1000, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(fd, entry->ai_addr, entry->ai_addrlen) != 0) {
      error = errno;
      ::close(fd);
      fd = -1;
    }
  }
  ::freeaddrinfo(found);
  TORCH_CHECK(fd >= 0, "the worker at tcp:", host, ":", port, " cannot be reached: ", std::strerror(error));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

int connect_address(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return connect_unix(address.substr(5));
  const size_t colon = address.rfind(':');
  TORCH_CHECK(address.rfind("tcp:", 0) == 0 && colon > 4, "a worker's address is unix:PATH or tcp:HOST:PORT, not ", address);
  return connect_tcp(address.substr(4, colon - 4), address.substr(colon + 1));
}

}  // namespace

void Connection::open(const std::string& address) {
  close();
  socket_ = connect_address(address);
}

void Connection::close() {
  const int fd = socket_.exchange(-1);
  if (fd >= 0) ::close(fd);
}

void Connection::shut_down() {
  const int fd = socket_.load();
  if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
}

std::optional<size_t> Connection::send(const uint8_t* data, size_t bytes) {
  const ssize_t count = ::send(socket_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0 && is_full()) return std::nullopt;
  if (count < 0 && errno != EINTR) lose(std::strerror(errno));
  if (count <= 0) return 0;
  counters_.bytes_sent.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
  return static_cast<size_t>(count);
}

ssize_t Connection::receive(uint8_t* target, size_t bytes) {
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
  pollfd entry{socket_, events, 0};
  const int ready = ::poll(&entry, 1, kPollMs);
  if (ready < 0 && errno != EINTR) lose(std::strerror(errno));
  if (ready > 0) return;
  check_signals();
  if (socket_ < 0) lose("it was closed");
}

bool Connection::has_unread() const {
  int unread = 0;
  return ::ioctl(socket_, SIOCOUTQ, &unread) == 0 && unread > 0;
}

void Connection::check_alive() {
  pollfd entry{socket_, POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) lose("the worker ended");
}

void Connection::end(const std::string& reason, bool gone) {
  fail_(reason, gone);
  TORCH_CHECK(false, "the connection to the worker broke (", reason, ")");
}

}  // namespace forebay
