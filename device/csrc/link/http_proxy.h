// An HTTP proxy by which alone a network lets programs out: a tunnel through it (RFC 9110, section 9.3.6).
#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

namespace forebay {

struct HttpProxy {
  std::string address;        // HOST:PORT
  std::string authorization;  // the value of the header Proxy-Authorization; empty: none is sent
};

// The proxy answered, and lets this side not through.
struct ProxyRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Whether a socket to the proxy is from now on one to `target`, HOST:PORT. False, with errno, if the connection broke or the proxy does not
// reach the target at present (ECONNRESET), or nothing came for so long (ETIMEDOUT). Throws ProxyRefused, and what `check` does, which is
// called now and then.
bool open_tunnel(int socket, const HttpProxy& proxy, const std::string& target, std::chrono::milliseconds patience, const std::function<void()>& check);

}  // namespace forebay
