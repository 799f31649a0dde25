// The handshake of TLS with who is reached by a socket.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "forebay/tls.h"

namespace forebay {

// The stream, once both sides have greeted each other. Null, with errno, if the connection broke (ECONNRESET), or nothing came for so long
// (ETIMEDOUT). Throws TlsError where the other side speaks no TLS or is not who is wanted, and what `check` does, which is called now and then.
std::unique_ptr<TlsStream> greet_by_tls(std::unique_ptr<TlsStream> tls, int socket, std::chrono::milliseconds patience, const std::function<void()>& check);

}  // namespace forebay
