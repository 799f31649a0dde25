#include "stream/receiver.h"

#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace forebay {
namespace {

using wire::Reply;

constexpr size_t kDataHeadBytesMax = 1 + 3 * 10;

}  // namespace

void Receiver::begin(uint64_t generation, bool keeps_answers) {
  filled_ = 0;
  generation_ = generation;
  answered_ = 0;
  answers_.begin(keeps_answers);
}

void Receiver::fill(size_t bytes) {
  if (incoming_.size() < bytes) incoming_.resize(bytes);
  while (filled_ < bytes) filled_ += receive_some(incoming_.data() + filled_, bytes - filled_);
}

// Waits if nothing is there; 0 after a signal.
size_t Receiver::receive_some(uint8_t* target, size_t bytes) {
  ssize_t count = 0;
  const auto look = [&] {
    count = connection_.receive(target, bytes);
    return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  };
  (shared_.is_in_use() ? bulk_spinner_ : spinner_).until(look);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) connection_.lose("the worker ended");
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    connection_.wait(POLLIN);
  } else if (errno != EINTR) {
    connection_.lose(std::strerror(errno));
  }
  return 0;
}

// Reads one whole frame into incoming_. An interrupt leaves what came so far for the next call.
void Receiver::receive_frame() {
  fill(wire::kFrameHeaderBytes);
  fill(wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data()));
}

void Receiver::receive_first(const Take& take) {
  receive_frame();
  wire::Reader body = this->body();
  filled_ = 0;
  const auto reply = static_cast<Reply>(body.u8());
  take(reply, body);
}

void Receiver::receive(uint64_t request, const Take& take) {
  TORCH_CHECK(session_.connected, "the virtual device is not connected to a worker");
  while (!receive_one(request, take)) {
  }
}

bool Receiver::receive_one(uint64_t request, const Take& take) {
  receive_frame();
  wire::Reader body = this->body();
  filled_ = 0;
  const auto reply = static_cast<Reply>(body.u8());
  if (reply == Reply::kRefused) refused(body);
  const uint64_t answered = body.varint();
  if (answered > request) connection_.fail("an answer to a question not asked");
  if (answered == request) {
    if (reply == Reply::kData) answers_.note(request, body);
    answered_ = std::max(answered_, answered);
    take(reply, body);
    return true;
  }
  if (answered != 0) {
    take_other(answered, reply, body);
  } else if (!take_unasked(reply, body)) {
    connection_.fail("an answer to no question");
  }
  return false;
}

bool Receiver::take_unasked(Reply reply, wire::Reader& body) {
  if (reply == Reply::kKept) {
    answers_.forget(images_.answered(body));
  } else if (reply == Reply::kFailure) {
    failures_.take_notice(told_failure(body, generation_));
  } else if (reply == Reply::kCheckpoints) {
    has_dropped_checkpoints_ = true;
  } else {
    return false;
  }
  return true;
}

// Ends the session here, or the connection alone if the session may go on at another worker.
void Receiver::refused(wire::Reader& body) {
  const std::string message = "the worker refused: " + body.string(wire::kMessageBytesMax);
  if (!body.done() && body.u8() != 0) connection_.lose(message);
  connection_.fail(message);
}

// An answer that no thread waits for, or that was given before, by another worker.
void Receiver::take_other(uint64_t request, Reply reply, wire::Reader& body) {
  if (request <= answered_) {
    if (reply == Reply::kData) answers_.compare(request, body);
    return;
  }
  answered_ = request;
  downloads_.take(request, reply, body, generation_);
}

std::optional<uint64_t> Receiver::receive_data(uint64_t request, uint8_t* target, size_t bytes) {
  fill(wire::kFrameHeaderBytes);
  const size_t frame = wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data());
  if (frame < bytes) return std::nullopt;
  fill(std::max(filled_, wire::kFrameHeaderBytes + kDataHeadBytesMax));
  wire::Reader body = this->body();
  if (body.u8() != static_cast<uint8_t>(Reply::kData) || body.varint() != request) return std::nullopt;
  const uint64_t busy = body.varint();
  if (body.varint() != bytes) return std::nullopt;
  if (frame - bytes != filled_ - body.left()) return std::nullopt;
  size_t done = body.left();
  std::memcpy(target, body.position(), done);
  try {
    while (done < bytes) done += receive_some(target + done, bytes - done);
  } catch (...) {  // an interrupt: the rest of the frame is received, and passed over, by whoever waits next
    incoming_.resize(std::max(incoming_.size(), frame));
    filled_ = frame - bytes + done;
    throw;
  }
  filled_ = 0;
  answered_ = std::max(answered_, request);
  return busy;
}

void Receiver::listen() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !session_.connected || session_.away || !has_whole_frame()) return;
  wire::Reader body = this->body();
  const auto reply = static_cast<Reply>(body.u8());
  if (reply == Reply::kRefused || body.varint() != 0) return;  // whoever waits next takes it
  if (take_unasked(reply, body)) filled_ = 0;
}

void Receiver::pass_over(uint64_t answered) {
  while (has_whole_frame()) {
    wire::Reader body = this->body();
    const auto reply = static_cast<Reply>(body.u8());
    if (reply == Reply::kRefused) refused(body);
    const uint64_t request = body.varint();
    if (request > answered) return;
    request != 0 ? take_other(request, reply, body) : static_cast<void>(take_unasked(reply, body));
    filled_ = 0;
  }
}

// Receives of the next frame what has come.
bool Receiver::has_whole_frame() {
  for (size_t whole = wire::kFrameHeaderBytes;;) {
    if (filled_ >= wire::kFrameHeaderBytes) whole = wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data());
    if (filled_ == whole && whole > wire::kFrameHeaderBytes) return true;
    if (incoming_.size() < whole) incoming_.resize(whole);
    const ssize_t count = connection_.receive(incoming_.data() + filled_, whole - filled_);
    if (count <= 0) return false;
    filled_ += static_cast<size_t>(count);
  }
}

}  // namespace forebay
