// What both sides of a command stream over TCP keep, so that a connection that broke is resumed by another one; docs/wire.md, Resumption.
//
// This header knows bytes and counts only: no sockets, no threads. It counts the bytes of frames, in each direction. Between two frames a
// side may send a control, which is not counted: 12 bytes, of which the first four cannot be the header of a frame.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "forebay/wire.h"

namespace forebay::wire {

constexpr size_t kUnacknowledgedBytesMax = size_t{8} << 20;  // beyond these a side begins no frame
constexpr size_t kAcknowledgedBytes = size_t{1} << 20;       // a side acknowledges each so many bytes that it has read
constexpr size_t kGraceMsMax = size_t{24} * 3600 * 1000;     // for which a worker waits for a client whose connection broke
constexpr size_t kControlBytes = 4 + 8;
constexpr uint32_t kControlFlag = 0x80000000;  // no frame is so long

enum class Control : uint32_t {
  kAcknowledge = kControlFlag,  // and so many bytes were read
  kBye = kControlFlag + 1,      // as kAcknowledge, and this side resumes nothing
};

// Follows a stream of frames.
class FrameCursor {
 public:
  bool is_between_frames() const { return left_ == 0 && head_bytes_ == 0; }

  void pass(const uint8_t* data, size_t bytes) {
    while (bytes > 0) {
      size_t count = 1;
      if (left_ > 0) {
        count = std::min(left_, bytes);
        left_ -= count;
      } else {
        head_[head_bytes_++] = *data;
        if (head_bytes_ == head_.size()) {
          left_ = get_frame_header(head_.data());
          head_bytes_ = 0;
        }
      }
      data += count;
      bytes -= count;
    }
  }

 private:
  std::array<uint8_t, kFrameHeaderBytes> head_{};
  size_t head_bytes_ = 0;
  size_t left_ = 0;  // of the frame's body
};

// Bytes at the end of which more are added, and from the beginning of which others go.
class ByteQueue {
 public:
  size_t size() const { return bytes_.size() - begin_; }
  const uint8_t* data() const { return bytes_.data() + begin_; }
  void add(const uint8_t* data, size_t bytes) { bytes_.insert(bytes_.end(), data, data + bytes); }
  void drop(size_t bytes) {
    begin_ += bytes;
    if (begin_ * 2 < bytes_.size()) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t begin_ = 0;
};

// What this side wrote and the other has not acknowledged, in order: some of it went out over the present connection, the rest is to go.
class SentBytes {
 public:
  // Writes bytes, which are to go.
  void write(const uint8_t* data, size_t bytes) {
    cursor_.pass(data, bytes);
    kept_.add(data, bytes);
  }
  // Writes bytes that went out already. Only where nothing was to go.
  void note_sent(const uint8_t* data, size_t bytes) {
    write(data, bytes);
    advance(bytes);
  }
  // No frame may begin before the other side has acknowledged more.
  bool is_full() const { return cursor_.is_between_frames() && kept_.size() >= kUnacknowledgedBytesMax; }

  // What is to go next, of which `advance` is told how much went.
  const uint8_t* next() const { return control_left_ > 0 ? control_.data() + kControlBytes - control_left_ : kept_.data() + sent_; }
  size_t left() const { return control_left_ > 0 ? control_left_ : kept_.size() - sent_; }
  void advance(size_t bytes) {
    if (control_left_ > 0) {
      control_left_ -= bytes;
      return;
    }
    sent_ += bytes;
    sent_max_ = std::max(sent_max_, sent_);
  }

  bool can_take_control() const { return left() == 0 && cursor_.is_between_frames(); }
  void put_control(Control control, uint64_t count) {
    const auto head = static_cast<uint32_t>(control);
    std::memcpy(control_.data(), &head, sizeof(head));
    std::memcpy(control_.data() + sizeof(head), &count, sizeof(count));
    control_left_ = kControlBytes;
  }

  // The other side has read so many bytes. Throws WireError, and changes nothing, if it cannot have.
  void acknowledge(uint64_t count) {
    if (count < acknowledged_ || count - acknowledged_ > sent_max_) {
      throw WireError("the other side says that it has " + std::to_string(count) + " bytes, of which it was sent " + std::to_string(acknowledged_ + sent_max_) +
                      " and has acknowledged " + std::to_string(acknowledged_));
    }
    const auto bytes = static_cast<size_t>(count - acknowledged_);
    kept_.drop(bytes);
    acknowledged_ = count;
    sent_ -= std::min(sent_, bytes);
    sent_max_ -= bytes;
  }
  // Another connection takes the place of the one before: it carries what the other side has not received. Throws as `acknowledge` does.
  void resume(uint64_t received) {
    acknowledge(received);
    sent_ = 0;
    control_left_ = 0;
  }

 private:
  FrameCursor cursor_;
  ByteQueue kept_;
  uint64_t acknowledged_ = 0;  // bytes before those that are kept
  size_t sent_ = 0;            // of those that are kept, over the present connection
  size_t sent_max_ = 0;        // of those that are kept, over any connection
  std::array<uint8_t, kControlBytes> control_{};
  size_t control_left_ = 0;  // goes before all else
};

// What came from the other side. Frames are read as a stream of bytes; controls are taken out of it.
class ReceivedBytes {
 public:
  // Bytes that came and were not read.
  size_t available() const { return scanned_ - begin_; }
  // False where so much is unread that no more is to be taken from the connection.
  bool has_room() const { return end_ - begin_ < kUnacknowledgedBytesMax + kFrameBytesMax; }
  // So many bytes may be received straight to where they belong: the rest of a frame, none of which has come.
  size_t direct_bytes() const { return begin_ == end_ ? left_ : 0; }
  void note_direct(size_t bytes) {
    left_ -= bytes;
    read_ += bytes;
  }

  // Receives more by `receive(target, bytes)`, whose result is as that of recv(2), and is returned. Gives controls to
  // `take(control, count)`. Throws WireError.
  template <typename Receive, typename Take>
  auto fill(const Receive& receive, const Take& take) {
    make_room();
    const auto count = receive(bytes_.data() + end_, bytes_.size() - end_);
    if (count <= 0) return count;
    end_ += static_cast<size_t>(count);
    scan(take);
    return count;
  }
  // At most so many; returns how many there were.
  size_t read(uint8_t* target, size_t bytes) {
    const size_t count = std::min(bytes, available());
    if (count == 0) return 0;
    std::memcpy(target, bytes_.data() + begin_, count);
    begin_ += count;
    read_ += count;
    return count;
  }

  uint64_t received() const { return read_ + available(); }
  bool is_to_be_acknowledged() const { return read_ >= acknowledged_ + kAcknowledgedBytes; }
  // How many bytes were read; they count as acknowledged.
  uint64_t acknowledge() { return acknowledged_ = std::max(acknowledged_, read_); }
  // Another connection takes the place of the one before, and begins behind what was received: so much, which counts as acknowledged.
  uint64_t resume() {
    end_ = scanned_;
    return acknowledged_ = received();
  }

 private:
  static constexpr size_t kFillBytes = size_t{256} << 10;

  void make_room() {
    if (begin_ == end_) begin_ = scanned_ = end_ = 0;
    if (bytes_.size() - end_ >= kFillBytes / 2) return;
    if (begin_ >= kFillBytes / 2 && begin_ >= end_ - begin_) {
      std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
      scanned_ -= begin_;
      end_ -= begin_;
      begin_ = 0;
    } else {
      bytes_.resize(std::max(kFillBytes, bytes_.size() * 2));
    }
  }

  template <typename Take>
  void scan(const Take& take) {
    while (scanned_ < end_) {
      if (left_ > 0) {
        const size_t count = std::min(left_, end_ - scanned_);
        scanned_ += count;
        left_ -= count;
        continue;
      }
      const uint8_t* head = bytes_.data() + scanned_;
      if (end_ - scanned_ < kFrameHeaderBytes) return;
      uint32_t control;
      std::memcpy(&control, head, sizeof(control));
      if ((control & kControlFlag) == 0) {
        left_ = kFrameHeaderBytes + get_frame_header(head);
        continue;
      }
      if (end_ - scanned_ < kControlBytes) return;
      uint64_t count;
      std::memcpy(&count, head + sizeof(control), sizeof(count));
      end_ -= kControlBytes;
      std::memmove(bytes_.data() + scanned_, head + kControlBytes, end_ - scanned_);
      take(static_cast<Control>(control), count);
    }
  }

  std::vector<uint8_t> bytes_;
  size_t begin_ = 0;    // of what was not read
  size_t scanned_ = 0;  // before this are frames alone
  size_t end_ = 0;
  size_t left_ = 0;  // of the frame that is scanned, its header included
  uint64_t read_ = 0;
  uint64_t acknowledged_ = 0;  // as the other side was told; more than was read, after another connection took the place of one
};

}  // namespace forebay::wire
