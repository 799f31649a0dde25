#include "base/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace forebay::worker {

namespace {

constexpr int kBacklog = 16;

// Small messages of a TCP connection go at once, and where the other side answers nothing any more, as after a cut of the network, an idle
// connection ends after a minute and a half (tcp(7)).
void prepare_tcp(int socket) {
  const auto set = [socket](int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

// Lets every user connect where every user may pass the socket's folder: then clients, and other workers, run under other accounts.
void open_to_others(const std::string& path) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  if ((std::filesystem::status(folder).permissions() & std::filesystem::perms::others_exec) == std::filesystem::perms::none) return;
  std::filesystem::permissions(path, static_cast<std::filesystem::perms>(0666));
}

}  // namespace

void throw_errno(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Listener::Listener(const std::string& address) : address_(address) {
  if (address.rfind("unix:", 0) == 0) {
    listen_unix(address.substr(5));
  } else if (address.rfind("tcp:", 0) == 0) {
    listen_tcp(address.substr(4));
  } else {
    throw std::invalid_argument("an address \"" + address + "\"; a worker listens at unix:/path or tcp:host:port");
  }
}

void Listener::listen_unix(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    throw std::invalid_argument("a socket path of " + std::to_string(path.size()) + " bytes; between 1 and " +
                                std::to_string(sizeof(name.sun_path) - 1) + " can be used");
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  descriptor_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!descriptor_) throw_errno("a socket");
  if (::bind(get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) throw_errno("listening at " + address_);
  path_ = path;
  open_to_others(path);
  if (::listen(get(), kBacklog) != 0) throw_errno("listening at " + address_);
}

void Listener::listen_tcp(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  if (colon == std::string::npos) throw std::invalid_argument("an address \"" + address_ + "\" without a port");
  const std::string host = host_and_port.substr(0, colon);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), host_and_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) throw std::invalid_argument("an address \"" + address_ + "\": " + ::gai_strerror(error));
  descriptor_ = Descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool bound = descriptor_ && ::bind(get(), found->ai_addr, found->ai_addrlen) == 0 && ::listen(get(), kBacklog) == 0;
  ::freeaddrinfo(found);
  if (!bound) throw_errno("listening at " + address_);
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (::getsockname(get(), reinterpret_cast<sockaddr*>(&name), &size) != 0) throw_errno("listening at " + address_);
  const uint16_t port = name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&name)->sin6_port
                                                   : reinterpret_cast<const sockaddr_in*>(&name)->sin_port;
  address_ = "tcp:" + host + ":" + std::to_string(ntohs(port));
}

Descriptor Listener::accept() const {
  Descriptor peer(::accept4(get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (peer && path_.empty()) prepare_tcp(peer.get());
  return peer;
}

void Listener::close() {
  descriptor_ = Descriptor();
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

namespace {

Descriptor begin_connect_unix(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) throw std::invalid_argument("a socket path of " + std::to_string(path.size()) + " bytes");
  std::memcpy(name.sun_path, path.data(), path.size());
  Descriptor peer(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!peer) throw_errno("a socket");
  if (::connect(peer.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) throw_errno("reaching unix:" + path);
  return peer;
}

Descriptor begin_connect_tcp(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  if (colon == std::string::npos) throw std::invalid_argument("an address \"tcp:" + host_and_port + "\" without a port");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host_and_port.substr(0, colon).c_str(), host_and_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) throw std::invalid_argument("an address \"tcp:" + host_and_port + "\": " + ::gai_strerror(error));
  Descriptor peer(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (peer) prepare_tcp(peer.get());
  const bool begun = peer && (::connect(peer.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
  ::freeaddrinfo(found);
  if (!begun) throw_errno("reaching tcp:" + host_and_port);
  return peer;
}

}  // namespace

Descriptor begin_connect(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return begin_connect_unix(address.substr(5));
  if (address.rfind("tcp:", 0) == 0) return begin_connect_tcp(address.substr(4));
  throw std::invalid_argument("an address \"" + address + "\"; a worker listens at unix:/path or tcp:host:port");
}

void attach(msghdr& message, int descriptor, AttachmentRoom& room) {
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(descriptor));
}

ssize_t receive_attached(int socket, uint8_t* target, size_t bytes, Descriptor& attached) {
  iovec part{target, bytes};
  alignas(cmsghdr) AttachmentRoom room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  const auto got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* found = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (found != nullptr && found->cmsg_level == SOL_SOCKET && found->cmsg_type == SCM_RIGHTS && found->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor;
    std::memcpy(&descriptor, CMSG_DATA(found), sizeof(descriptor));
    attached = Descriptor(descriptor);
  }
  return got;
}

std::string any_port_of(const std::string& address) {
  if (address.rfind("tcp:", 0) != 0) return address;
  return address.substr(0, address.rfind(':')) + ":0";
}

Bell::Bell() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!descriptor_) throw_errno("an eventfd");
}

void Bell::ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(get(), &one, sizeof(one));  // fails only where it rings already
}

void Bell::silence() const {
  uint64_t count;
  [[maybe_unused]] const auto got = ::read(get(), &count, sizeof(count));  // fails only where it is silent
}

}  // namespace forebay::worker
