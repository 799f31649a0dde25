// A storage's memory on another device of the session.
#pragma once

namespace forebay::worker {

// The memory is freed with this object.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // The number of the device among the session's, from 1.
  virtual int place() const = 0;
};

}  // namespace forebay::worker
