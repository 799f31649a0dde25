#include "link/http_proxy.h"

#include <sys/socket.h>

#include <cerrno>

#include "link/http_answer.h"

namespace forebay {
namespace {

constexpr int kSuccess = 200, kSuccessEnd = 300, kNoCredentials = 407, kServerError = 500;

}  // namespace

bool open_tunnel(int socket, const HttpProxy& proxy, const std::string& target, std::chrono::milliseconds patience, const std::function<void()>& check) {
  const std::string authorization = proxy.authorization.empty() ? "" : "Proxy-Authorization: " + proxy.authorization + "\r\n";
  const std::string request = "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n" + authorization + "\r\n";
  const ssize_t sent = ::send(socket, request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // few bytes, which a fresh connection takes
  errno = ECONNRESET;
  if (sent != static_cast<ssize_t>(request.size())) return false;
  const auto receive = [socket](uint8_t* bytes, size_t count) { return ::recv(socket, bytes, count, MSG_DONTWAIT); };
  const auto answer = receive_http_answer(socket, receive, patience, check);
  if (!answer) return false;
  const int status = answer->status();
  errno = ECONNRESET;
  if (status >= kSuccess && status < kSuccessEnd) return answer->rest.empty();  // the target waits until it is spoken to
  if (status >= kServerError) return false;
  if (status == kNoCredentials) throw ProxyRefused("the proxy " + proxy.address + " does not accept these credentials, or wants some (HTTP status 407)");
  throw ProxyRefused("the proxy " + proxy.address + " does not connect to " + target + " (HTTP status " + std::to_string(status) + ")");
}

}  // namespace forebay
