// Bytes on their way from one worker to another on the same host, in order, through memory that both map.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/shared_memory.h"
#include "base/socket.h"

namespace forebay::worker {

// One side of it; the other side is another process, and nothing that it wrote is trusted. Throws wire::WireError where its counts cannot be.
class Ring {
 public:
  // For the side that sends. Throws std::system_error where the host has no memory.
  Ring();
  // For the side that receives: what the other one made. Throws wire::WireError where it is something else.
  explicit Ring(Descriptor descriptor);

  int descriptor() const { return memory_.descriptor(); }
  // As many as there is room for.
  size_t put(const uint8_t* data, size_t bytes);
  // As many as lie there.
  size_t take(uint8_t* target, size_t bytes);

  // This side is about to sleep until the other one wakes it: it must look once more after this.
  void sleep();
  // Whether the other side sleeps; it does so no more.
  bool wakes();

 private:
  struct Counts;
  Counts& counts() const;
  uint8_t* at(uint64_t place) const;

  SharedMemory memory_;
  bool sends_;
  uint64_t moved_ = 0;  // bytes, by this side
};

}  // namespace forebay::worker
