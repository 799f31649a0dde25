#include "server/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace forebay::worker {

namespace {

// Lets a message carry a descriptor. The bytes must live until it is sent.
void attach(msghdr& message, int descriptor, std::array<char, CMSG_SPACE(sizeof(int))>& bytes) {
  message.msg_control = bytes.data();
  message.msg_controllen = bytes.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(descriptor));
}

}  // namespace

size_t Connection::receive_into(void* target, size_t bytes) {
  const auto got = ::recv(socket_.get(), target, bytes, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) throw ClientLost();
  return got < 0 ? 0 : static_cast<size_t>(got);
}

void Connection::send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor) {
  std::array<uint8_t, wire::kFrameHeaderBytes> header;
  wire::put_frame_header(header.data(), head.size() + payload_bytes);
  std::array<iovec, 3> parts{{{header.data(), header.size()},
                              {const_cast<uint8_t*>(head.bytes().data()), head.size()},
                              {const_cast<void*>(payload), payload_bytes}}};
  size_t first = 0;
  while (true) {
    while (first < parts.size() && parts[first].iov_len == 0) ++first;
    if (first == parts.size()) {
      answered_at_ = Clock::now();
      return;
    }
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = parts.size() - first;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (descriptor >= 0) attach(message, descriptor, control);
    auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) throw ClientLost();
      wait_to_send_();
      continue;
    }
    descriptor = -1;  // it goes with the first byte
    for (size_t part = first; sent > 0; ++part) {
      const size_t taken = std::min(static_cast<size_t>(sent), parts[part].iov_len);
      parts[part].iov_base = static_cast<uint8_t*>(parts[part].iov_base) + taken;
      parts[part].iov_len -= taken;
      sent -= static_cast<ssize_t>(taken);
    }
  }
}

}  // namespace forebay::worker
