// The head of an answer by HTTP/1.1 (RFC 9112), over a socket that becomes something else behind it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace forebay {

struct HttpAnswer {
  // As the first line says; 0 if it is none of HTTP.
  int status() const;
  // The value of a header; empty if there is none.
  std::string header(const std::string& name) const;

  std::string head;  // its lines, each with its end, without the empty line
  std::string rest;  // what came behind them
};

// `receive` is called as ByteStream::receive. Nothing, with errno, if the connection broke, or the head is longer than it may be
// (ECONNRESET), or nothing came for so long (ETIMEDOUT). Throws what `check` does, which is called now and then.
std::optional<HttpAnswer> receive_http_answer(int socket, const std::function<ssize_t(uint8_t*, size_t)>& receive, std::chrono::milliseconds patience,
                                              const std::function<void()>& check);

}  // namespace forebay
