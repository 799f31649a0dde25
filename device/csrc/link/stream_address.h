// Who is to answer where a worker is reached over a network: the worker itself, or the edge of its hub.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "link/address.h"
#include "link/byte_stream.h"
#include "link/http_proxy.h"
#include "link/web_socket.h"

namespace forebay {

// Whom to trust, and by which right to enter.
struct Credentials {
  std::string certificate;    // the hash of the worker's, as Handover::connect is told it; empty: the connection is in clear
  std::string authorization;  // for an edge: the value of the header Authorization
  HttpProxy proxy;            // for an edge: what is between; without an address: nothing
};

class StreamAddress {
 public:
  StreamAddress() = default;
  // `address`: tcp:HOST:PORT of a worker, or ws://… and wss://… of an edge. Throws if it is none of these, or the host is not known.
  StreamAddress(const std::string& address, Credentials credentials);

  // Whom to connect to: the worker, the edge, or the proxy before that.
  const TcpAddress& tcp() const { return tcp_; }
  bool is_edge() const { return edge_.has_value(); }
  // Whether the bytes go over the socket as they are: there is nothing to greet.
  bool is_clear() const { return !edge_ && certificate_.empty(); }
  // What carries the bytes over a socket to this address, which is not clear. Null and errors as of WebSocket::open, and of greet_by_tls, and of open_tunnel.
  std::unique_ptr<ByteStream> greet(int socket, std::chrono::milliseconds patience, const std::function<void()>& check) const;

 private:
  TcpAddress tcp_;
  std::string certificate_;
  std::optional<EdgeAddress> edge_;
  HttpProxy proxy_;
};

}  // namespace forebay
