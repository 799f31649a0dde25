// Commands, one after another, in frames of the wire format.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "forebay/wire.h"

namespace forebay {

class Frames {
 public:
  // `closed` counts the frames that were closed.
  explicit Frames(std::atomic<uint64_t>& closed) : closed_(closed) {}

  // Where a command is written; begins a frame if none is open.
  wire::Writer& open() {
    if (!is_open_) {
      start_ = bytes_.size();
      bytes_.raw("\0\0\0\0", wire::kFrameHeaderBytes);
      is_open_ = true;
    }
    return bytes_;
  }
  void close() {
    if (!is_open_) return;
    is_open_ = false;
    if (last_size() == wire::kFrameHeaderBytes) return bytes().resize(start_);  // there is no command in it
    wire::put_frame_header(bytes_.bytes().data() + start_, bytes_.size() - start_ - wire::kFrameHeaderBytes);
    ++closed_;
  }
  void clear() {
    bytes_.clear();
    start_ = 0;
    is_open_ = false;
  }
  // Of all frames.
  std::vector<uint8_t>& bytes() { return bytes_.bytes(); }
  size_t size() const { return bytes_.size(); }
  // Of the last frame, with its header.
  size_t last_size() const { return bytes_.size() - start_; }

 private:
  std::atomic<uint64_t>& closed_;
  wire::Writer bytes_;
  size_t start_ = 0;  // of the last frame
  bool is_open_ = false;
};

// One command in a frame of its own, which carries `payload` bytes more behind it.
template <typename Put>
std::vector<uint8_t> framed(const Put& put, uint64_t payload = 0) {
  wire::Writer out;
  out.raw("\0\0\0\0", wire::kFrameHeaderBytes);
  put(out);
  wire::put_frame_header(out.bytes().data(), out.size() - wire::kFrameHeaderBytes + payload);
  return std::move(out.bytes());
}

}  // namespace forebay
