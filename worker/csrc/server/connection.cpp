#include "server/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace forebay::worker {

void Connection::admit(Channel channel) {
  channel_ = std::move(channel);
  inbox_ = Inbox();
  link_.emplace();
}

void Connection::close() {
  channel_ = Channel();
  link_.reset();
}

void Connection::resume(Channel& channel, uint64_t received) {
  if (link_->is_over) throw wire::WireError("the session is over");
  link_->sent.resume(received);
  link_->resumes = true;
  channel_ = std::move(channel);
  wire::Writer head;
  head.reply(wire::Reply::kResumed);
  head.varint(link_->received.resume());
  std::vector<uint8_t> frame(wire::kFrameHeaderBytes);
  wire::put_frame_header(frame.data(), head.size());
  frame.insert(frame.end(), head.bytes().begin(), head.bytes().end());
  const auto sent = channel_.send(frame.data(), frame.size());
  if (sent != static_cast<ssize_t>(frame.size())) return lose();
  flush();
}

void Connection::lose() {
  channel_ = Channel();
  if (!is_resumable() && !is_untouched()) throw ClientLost();
}

bool Connection::flush() {
  auto& sent = link_->sent;
  while (is_there() && (sent.left() > 0 || channel_.has_left())) {
    const auto count = sent.left() > 0 ? channel_.send(sent.next(), sent.left()) : channel_.flush();
    if (count < 0 && errno == EAGAIN) return false;
    if (count < 0 && errno != EINTR) lose();
    if (count > 0) sent.advance(static_cast<size_t>(count));
  }
  return true;
}

void Connection::acknowledge() {
  if (!link_->resumes || !is_there() || !flush() || !link_->received.is_to_be_acknowledged() || !link_->sent.can_take_control()) return;
  link_->sent.put_control(wire::Control::kAcknowledge, link_->received.acknowledge());
  flush();
}

void Connection::take_control(wire::Control control, uint64_t count) {
  if (control != wire::Control::kAcknowledge && control != wire::Control::kBye) throw wire::WireError("a control of no known kind");
  if (!link_->resumes && (count != 0 || !is_untouched())) throw wire::WireError("an acknowledgement by a client that resumes nothing");
  link_->resumes = true;
  link_->sent.acknowledge(count);
  link_->is_over = link_->is_over || control == wire::Control::kBye;
}

ssize_t Connection::fill() {
  const auto receive = [this](uint8_t* target, size_t bytes) { return channel_.receive(target, bytes); };
  return link_->received.fill(receive, [this](wire::Control control, uint64_t count) { take_control(control, count); });
}

ssize_t Connection::take_in(uint8_t* target, size_t bytes) {
  if (!link_) return channel_.receive(target, bytes);
  auto& received = link_->received;
  auto count = static_cast<ssize_t>(received.read(target, bytes));
  if (count == 0 && is_there()) {
    size_t direct = std::min(bytes, received.direct_bytes());
    if (direct < channel_.room_bytes()) direct = 0;
    count = direct > 0 ? channel_.receive(target, direct) : fill();
    const bool broke = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    if (broke) lose();
    if (count > 0 && direct > 0) received.note_direct(static_cast<size_t>(count));
    if (direct == 0) count = static_cast<ssize_t>(received.read(target, bytes));
  }
  acknowledge();
  if (count > 0) return count;
  errno = EAGAIN;
  return -1;
}

void Connection::drain() {
  if (!is_there()) return;
  const auto count = fill();
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return lose();
  flush();
}

size_t Connection::receive_into(void* target, size_t bytes) {
  const auto got = take_in(static_cast<uint8_t*>(target), bytes);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) throw ClientLost();
  return got < 0 ? 0 : static_cast<size_t>(got);
}

// Returns when all went, or the connection broke.
void Connection::send_by_tls(const wire::Writer& head, const void* payload, size_t payload_bytes) {
  std::vector<uint8_t> begin(wire::kFrameHeaderBytes);
  wire::put_frame_header(begin.data(), head.size() + payload_bytes);
  begin.insert(begin.end(), head.bytes().begin(), head.bytes().end());
  const auto wait_or_lose = [this](ssize_t result) {
    if (result >= 0 || errno == EINTR) return;
    errno == EAGAIN ? wait_to_send_() : lose();
  };
  const auto send_all = [&](const uint8_t* data, size_t bytes) {
    for (size_t done = 0; done < bytes && is_there();) {
      const auto count = channel_.send(data + done, bytes - done);
      wait_or_lose(count);
      if (count > 0) done += static_cast<size_t>(count);
    }
  };
  send_all(begin.data(), begin.size());
  send_all(static_cast<const uint8_t*>(payload), payload_bytes);
  while (is_there() && channel_.has_left()) wait_or_lose(channel_.flush());
  answered_at_ = Clock::now();
}

// What is sent while the client is away goes when it is back.
void Connection::send_resumably(const wire::Writer& head, const void* payload, size_t payload_bytes) {
  while (link_->sent.is_full()) wait_to_send_();
  std::array<uint8_t, wire::kFrameHeaderBytes> header;
  wire::put_frame_header(header.data(), head.size() + payload_bytes);
  link_->sent.write(header.data(), header.size());
  link_->sent.write(head.bytes().data(), head.size());
  if (payload_bytes > 0) link_->sent.write(static_cast<const uint8_t*>(payload), payload_bytes);
  while (!flush()) wait_to_send_();
  answered_at_ = Clock::now();
}

void Connection::send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor) {
  if (link_ && link_->resumes) return send_resumably(head, payload, payload_bytes);
  if (channel_.is_encrypted()) return send_by_tls(head, payload, payload_bytes);
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
    auto sent = ::sendmsg(channel_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) return lose();
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
