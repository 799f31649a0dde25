#include "link/tls_greeting.h"

#include <poll.h>

#include <cerrno>

#include "base/waiting.h"

namespace forebay {

std::unique_ptr<TlsStream> greet_by_tls(std::unique_ptr<TlsStream> tls, int socket, std::chrono::milliseconds patience, const std::function<void()>& check) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto greeting = tls->greet();
    if (greeting == TlsStream::Greeting::kDone) return tls;
    errno = ECONNRESET;
    if (greeting == TlsStream::Greeting::kBroken) return nullptr;
    errno = ETIMEDOUT;
    if (std::chrono::steady_clock::now() >= until) return nullptr;
    pollfd entry{socket, POLLIN, 0};
    ::poll(&entry, 1, kPollMs);
    check();
  }
}

}  // namespace forebay
