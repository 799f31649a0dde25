// The library by which devices make collectives among themselves, as this worker's PyTorch has it: NCCL, or RCCL under the same name.
#pragma once

#include <cstddef>
#include <string>

namespace forebay::worker {

class DeviceLibrary {
 public:
  virtual ~DeviceLibrary() = default;

  // What all members of a group must have alike: the library, and from how many bytes on it is used.
  virtual const std::string& offer() const = 0;
  virtual size_t bytes_min() const = 0;
  // The device, among those of all hosts: no two members may have the same one. Empty: it does not matter.
  virtual const std::string& device() const = 0;

  // A back end of PyTorch's comes in two steps. First a c10d::ProcessGroup of this name with a store of its own, which resolve_process_group finds.
  // These throw std::runtime_error.
  virtual void begin(const std::string& name, size_t rank, size_t size) = 0;
  // Then its back end, which finds the others by what they write into their stores: returns when it has. From any thread.
  virtual void open(const std::string& name) = 0;
  // Nothing is to be done with it any more.
  virtual void end(const std::string& name) noexcept = 0;

  // Tells the operator why collectives go by the memory of hosts.
  virtual void decline(const std::string& why) noexcept = 0;
};

}  // namespace forebay::worker
