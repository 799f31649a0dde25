#include "link/stream_address.h"

#include <c10/util/Exception.h>

#include <utility>

#include "link/tls_greeting.h"

namespace forebay {
namespace {

constexpr char kTcp[] = "tcp:", kClear[] = "ws://", kEncrypted[] = "wss://";

bool begins_with(const std::string& text, const std::string& beginning) { return text.rfind(beginning, 0) == 0; }

// `rest`: what follows the scheme.
EdgeAddress edge_of(bool encrypted, const std::string& rest, std::string authorization) {
  const size_t slash = rest.find('/');
  TORCH_CHECK(slash != std::string::npos && slash > 0, "an edge's address is wss://HOST[:PORT]/PATH");
  const std::string authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && authority.find(']', colon) == std::string::npos;
  std::string host = has_port ? authority.substr(0, colon) : authority;
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  return {encrypted, host, authority, rest.substr(slash), std::move(authorization)};
}

std::string port_of(const EdgeAddress& edge) {
  const size_t bracket = edge.authority.rfind(']');
  const size_t colon = edge.authority.find(':', bracket == std::string::npos ? 0 : bracket);
  return colon == std::string::npos ? edge.encrypted ? "443" : "80" : edge.authority.substr(colon + 1);
}

// As a proxy is told it.
std::string target_of(const EdgeAddress& edge) {
  const bool is_ipv6 = edge.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + edge.host + "]" : edge.host) + ":" + port_of(edge);
}

}  // namespace

StreamAddress::StreamAddress(const std::string& address, Credentials credentials) : certificate_(std::move(credentials.certificate)) {
  if (begins_with(address, kTcp) && address.rfind(':') > sizeof(kTcp) - 2) {
    tcp_ = TcpAddress(address.substr(sizeof(kTcp) - 1));
    return;
  }
  const bool encrypted = begins_with(address, kEncrypted);
  TORCH_CHECK(encrypted || begins_with(address, kClear), "a worker's address is unix:PATH, tcp:HOST:PORT, or an edge's wss://HOST/PATH, not ", address);
  edge_ = edge_of(encrypted, address.substr(encrypted ? sizeof(kEncrypted) - 1 : sizeof(kClear) - 1), std::move(credentials.authorization));
  proxy_ = std::move(credentials.proxy);
  tcp_ = TcpAddress(proxy_.address.empty() ? edge_->host + ":" + port_of(*edge_) : proxy_.address);
}

std::unique_ptr<ByteStream> StreamAddress::greet(int socket, std::chrono::milliseconds patience, const std::function<void()>& check) const {
  if (!proxy_.address.empty() && !open_tunnel(socket, proxy_, target_of(*edge_), patience, check)) return nullptr;
  if (edge_) return WebSocket::open(socket, *edge_, patience, check);
  auto tls = greet_by_tls(std::make_unique<TlsStream>(socket, certificate_), socket, patience, check);
  return tls ? std::make_unique<TlsByteStream>(std::move(tls)) : nullptr;
}

}  // namespace forebay
