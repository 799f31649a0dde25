// What carries operators out on the virtual device.
#pragma once

#include <set>
#include <string>

namespace forebay::tf {

// Operators that are compiled one by one, as they come, run on the device as XLA's programs. Those that would read a device's memory as the host's are
// refused there. All others, TensorFlow places on the host.
void register_kernels();

// Operators with a kernel for any device that reads its memory as the host's: graphs have them on the host.
const std::set<std::string>& host_operators();

}  // namespace forebay::tf
