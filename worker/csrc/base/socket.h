// File descriptors, addresses, and the system's errors as exceptions.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace forebay::worker {

// What the last call of the system failed with, as std::system_error.
[[noreturn]] void throw_errno(const std::string& what);

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// A socket that listens at "unix:/path" or "tcp:host:port" (port 0: any), without blocking. A Unix socket's file goes with it.
class Listener {
 public:
  // Throws std::invalid_argument for another address, std::system_error where it cannot listen.
  explicit Listener(const std::string& address);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { close(); }

  // With the port that was chosen.
  const std::string& address() const { return address_; }
  bool is_unix() const { return address_.rfind("unix:", 0) == 0; }
  int get() const { return descriptor_.get(); }
  // The next waiting peer, not blocking; none if there is none.
  Descriptor accept() const;
  void close();

 private:
  void listen_unix(const std::string& path);
  void listen_tcp(const std::string& host_and_port);

  Descriptor descriptor_;
  std::string address_;
  std::string path_;
};

// A socket that begins to connect to such an address, without blocking: it is writable once it has. Throws as Listener does.
Descriptor begin_connect(const std::string& address);

// Lets a message over a Unix socket carry a descriptor. The room must live until it is sent.
using AttachmentRoom = std::array<char, CMSG_SPACE(sizeof(int))>;
void attach(msghdr& message, int descriptor, AttachmentRoom& room);
// As ::recv, without blocking; `attached` becomes the descriptor that came with the bytes, if one did.
ssize_t receive_attached(int socket, uint8_t* target, size_t bytes, Descriptor& attached);

// The same address, but any port of TCP: for another door beside the first.
std::string any_port_of(const std::string& address);

// An eventfd: wakes a thread that polls it.
class Bell {
 public:
  Bell();
  int get() const { return descriptor_.get(); }
  void ring() const;
  void silence() const;

 private:
  Descriptor descriptor_;
};

}  // namespace forebay::worker
