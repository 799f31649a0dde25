// Launches of kernels that a program brings of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/wire.h"
#include "stream/stream.h"

namespace forebay {

struct KernelRefusal {
  wire::FailureCode code;
  std::string why;
};

// Sends the worker a kernel under the number that the program gave it, unless it has that already, and waits until it is compiled; takes a lease.
// Why it does not take it; nothing if it does.
std::optional<KernelRefusal> define_kernel(CommandStream& stream, uint64_t kernel, const std::string& source);

struct LaunchArgument {
  at::Tensor tensor;  // undefined: a number
  uint64_t bits = 0;  // a number's
};

// Records the launch of a kernel, by the number that the program gave it. A worker that has not got it yet gets its source
// (forebay_wire/kernels.py), and is waited for. Throws where it takes none, or a tensor is not of the device.
void launch_kernel(c10::DeviceIndex device, uint64_t kernel, const std::string& source, const std::array<uint64_t, 3>& grid,
                   const std::vector<LaunchArgument>& arguments);

}  // namespace forebay
