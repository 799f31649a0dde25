// Makes sure that a socket leads to the worker whose certificate the pool told of.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "forebay/tls.h"

namespace forebay {

// Null, with errno, if the connection broke (ECONNRESET), or nothing came for so long (ETIMEDOUT). Throws TlsError where the other side speaks
// no TLS or shows another certificate than that with this hash, and what `check` does, which is called now and then.
std::unique_ptr<TlsStream> greet_by_tls(int socket, const std::string& certificate, std::chrono::milliseconds patience, const std::function<void()>& check);

}  // namespace forebay
