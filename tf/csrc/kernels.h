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

// TensorFlow's kernels for any device pass these on, wherever their tensors lie.
bool is_passed_on(const std::string& op);

// Whether XLA has a program for the operator, which may be left to the host all the same.
bool has_program(const std::string& op);

}  // namespace forebay::tf
