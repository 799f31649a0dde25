// Memory that a client or another worker on the same host maps as well, for bulk data. Only payload lies there, and counts of it: the other side
// may write to any byte at any time, so nothing that is read from it is ever trusted, or read twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/socket.h"

namespace forebay::worker {

class SharedMemory {
 public:
  SharedMemory() = default;
  // `bytes` of zeroed memory, which no peer can shrink. Throws std::system_error where the host has none.
  explicit SharedMemory(size_t bytes);
  // What another process made so. Throws wire::WireError where it has another size, or could get one.
  SharedMemory(Descriptor descriptor, size_t bytes);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  int descriptor() const { return descriptor_.get(); }
  size_t bytes() const { return bytes_; }
  // Throws wire::WireError where the range is not one of the payload's.
  uint8_t* at(uint64_t offset, size_t bytes) const;
  // Tells the client that one more WRITE_SHARED has been read out.
  void taken();

 private:
  void map();

  Descriptor descriptor_;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  uint32_t taken_ = 0;
};

}  // namespace forebay::worker
