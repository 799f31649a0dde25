#include "link/http_answer.h"

#include <poll.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/waiting.h"
#include "link/byte_stream.h"

namespace forebay {
namespace {

constexpr size_t kHeadBytesMax = size_t{16} << 10;
constexpr char kEmptyLine[] = "\r\n\r\n";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

}  // namespace

int HttpAnswer::status() const {
  const size_t space = head.find(' ');
  return head.rfind("HTTP/1.", 0) != 0 || space == std::string::npos ? 0 : std::atoi(head.c_str() + space + 1);
}

std::string HttpAnswer::header(const std::string& name) const {
  const std::string wanted = "\r\n" + lower(name) + ":";
  const size_t at = lower(head).find(wanted);
  if (at == std::string::npos) return "";
  const size_t begin = head.find_first_not_of(" \t", at + wanted.size());
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

std::optional<HttpAnswer> receive_http_answer(int socket, const std::function<ssize_t(uint8_t*, size_t)>& receive, std::chrono::milliseconds patience,
                                              const std::function<void()>& check) {
  const auto until = std::chrono::steady_clock::now() + patience;
  std::vector<uint8_t> read(ByteStream::kRoomBytes);
  std::string came;
  while (came.size() < kHeadBytesMax) {
    const ssize_t count = receive(read.data(), read.size());
    if (count > 0) {
      came.append(reinterpret_cast<const char*>(read.data()), static_cast<size_t>(count));
      const size_t end = came.find(kEmptyLine);
      if (end != std::string::npos) return HttpAnswer{came.substr(0, end + 2), came.substr(end + sizeof(kEmptyLine) - 1)};
      continue;
    }
    const bool nothing = count < 0 && (errno == EAGAIN || errno == EINTR);
    errno = nothing ? ETIMEDOUT : ECONNRESET;
    if (!nothing || std::chrono::steady_clock::now() >= until) return std::nullopt;
    pollfd entry{socket, POLLIN, 0};
    ::poll(&entry, 1, kPollMs);
    check();
  }
  errno = ECONNRESET;
  return std::nullopt;
}

}  // namespace forebay
