#include "link/address.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/waiting.h"

namespace forebay {
namespace {

// Waits until a socket that began to connect has done so. Its error; ETIMEDOUT after `patience`.
int finish_connecting(int fd, std::chrono::milliseconds patience, const std::function<void()>& look) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    pollfd entry{fd, POLLOUT, 0};
    if (::poll(&entry, 1, kPollMs) > 0) break;
    if (std::chrono::steady_clock::now() >= until) return ETIMEDOUT;
    look();
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

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

TcpAddress::TcpAddress(std::string host_and_port) : name_(std::move(host_and_port)) {
  const size_t colon = name_.rfind(':');
  const std::string host = name_.substr(0, colon);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int status = ::getaddrinfo(host.c_str(), name_.c_str() + colon + 1, &hints, &found);
  TORCH_CHECK(status == 0, "the host ", host, " cannot be found: ", ::gai_strerror(status));
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    entries_.push_back({{}, entry->ai_addrlen});
    std::memcpy(&entries_.back().address, entry->ai_addr, entry->ai_addrlen);
  }
  ::freeaddrinfo(found);
}

int TcpAddress::connect(std::chrono::milliseconds patience, const std::function<void()>& look) const {
  int error = EHOSTUNREACH;
  for (const auto& entry : entries_) {
    const int fd = ::socket(entry.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    try {
      const bool begun = ::connect(fd, reinterpret_cast<const sockaddr*>(&entry.address), entry.bytes) == 0 || errno == EINPROGRESS;
      error = begun ? finish_connecting(fd, patience, look) : errno;
    } catch (...) {
      ::close(fd);
      throw;
    }
    if (error == 0) {
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return fd;
    }
    ::close(fd);
  }
  errno = error;
  return -1;
}

}  // namespace forebay
