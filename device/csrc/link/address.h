// Where a worker listens, and sockets to it.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace forebay {

// A socket to a worker on this host. Throws if nothing answers.
int connect_unix(const std::string& path);

// A worker's "HOST:PORT", looked up once: a host's name may not be found again while a network is cut.
class TcpAddress {
 public:
  TcpAddress() = default;
  // Throws if the host is not known.
  explicit TcpAddress(std::string host_and_port);

  // A socket that sends small messages at once; -1 with errno if nothing answers within `patience`. Calls `look` now and then meanwhile, which
  // may throw.
  int connect(std::chrono::milliseconds patience, const std::function<void()>& look) const;
  const std::string& name() const { return name_; }

 private:
  struct Entry {
    sockaddr_storage address;
    socklen_t bytes;
  };

  std::string name_;
  std::vector<Entry> entries_;
};

}  // namespace forebay
