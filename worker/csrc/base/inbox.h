// What has arrived from the client, cut into frames.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include <forebay/wire.h>

namespace forebay::worker {

class Inbox {
 public:
  enum class Arrival { kSome, kNothing, kEnd };

  // Receives what is there, not blocking, by `receive(target, bytes)`, which returns as recv(2) does. Throws wire::WireError for a frame of
  // forbidden size.
  template <typename Receive>
  Arrival receive(const Receive& receive) {
    make_room();
    const auto got = receive(data_.get() + end_, capacity_ - end_);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
      return Arrival::kSome;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Arrival::kNothing;
    return Arrival::kEnd;
  }

  // The body's size, once the next frame's header is there. Throws wire::WireError.
  std::optional<size_t> body_size() const {
    if (end_ - begin_ < wire::kFrameHeaderBytes) return std::nullopt;
    return wire::get_frame_header(data_.get() + begin_);
  }
  // What is there of the next frame's body.
  wire::Reader body_so_far() const {
    const size_t there = end_ - begin_ - wire::kFrameHeaderBytes;
    const size_t size = *body_size();
    return {data_.get() + begin_ + wire::kFrameHeaderBytes, there < size ? there : size};
  }
  // Whether all of the next frame is there.
  bool is_complete() const {
    const auto size = body_size();
    return size && end_ - begin_ - wire::kFrameHeaderBytes >= *size;
  }
  // Forgets the next frame, or as much of it as is there.
  void drop() {
    const size_t frame = wire::kFrameHeaderBytes + *body_size();
    begin_ += frame < end_ - begin_ ? frame : end_ - begin_;
  }

 private:
  static constexpr size_t kCapacityBytes = size_t{512} << 10;

  // Room for the rest of the frame that has begun, and never none.
  void make_room() {
    const auto size = body_size();
    const size_t needed = size ? wire::kFrameHeaderBytes + *size : wire::kFrameHeaderBytes;
    if (begin_ == end_) begin_ = end_ = 0;
    if (begin_ + needed <= capacity_ && end_ < capacity_) return;
    const size_t kept = end_ - begin_;
    if (needed > capacity_ || kept == capacity_) {
      const size_t capacity = needed > capacity_ ? needed : capacity_;
      auto larger = std::make_unique<uint8_t[]>(capacity);
      std::memcpy(larger.get(), data_.get() + begin_, kept);
      data_ = std::move(larger);
      capacity_ = capacity;
    } else {
      std::memmove(data_.get(), data_.get() + begin_, kept);
    }
    begin_ = 0;
    end_ = kept;
  }

  std::unique_ptr<uint8_t[]> data_ = std::make_unique<uint8_t[]>(kCapacityBytes);
  size_t capacity_ = kCapacityBytes;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace forebay::worker
