// A kernel that a program brings of its own. It is compiled and handed to the device by forebay_worker/user_code/kernels.py.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <forebay/wire.h>

namespace forebay::worker {

using Grid = std::array<uint64_t, 3>;

// Hands the device a kernel, on the calling thread's stream: its number, how many blocks there are, and its packed parameters. Throws where it cannot be.
using LaunchKernel = std::function<void(uint64_t kernel, const Grid& grid, const std::string& parameters)>;

struct KernelParameter {
  size_t bytes = 0;
  bool is_pointer = false;
};

struct KernelArgument {
  uint64_t bits = 0;                   // a number's; of a pointer, how far into the storage it points
  std::optional<uint64_t> storage{};
};

// Of a session.
struct Kernel {
  uint64_t request = 0;  // that is answered once it is compiled
  bool is_ready = false;
  std::string name{};    // as it is told of failures
  std::vector<KernelParameter> parameters{};
};

// What a device takes of programs, and what a session must have for it.
struct KernelHost {
  std::string refused = "this worker takes none";  // why it takes none; empty: it does
  int64_t bytes_min = 0;  // of the device, that are the session's own
  std::string too_little{};  // why a session with less may launch none
  LaunchKernel launch{};
};

// As the compiler's process describes them: of each, its bytes (1, 2, 4 or 8), or p for a pointer. Throws std::invalid_argument.
std::vector<KernelParameter> kernel_parameters(const std::string& described);

std::vector<KernelArgument> get_kernel_arguments(wire::Reader& in);

// The parameters as a kernel reads them, one behind the other, each at a multiple of its size. `values` are numbers, and addresses.
// Throws CommandError where they are not what the kernel takes.
std::string packed(const Kernel& kernel, const std::vector<KernelArgument>& arguments, const std::vector<uint64_t>& values);

}  // namespace forebay::worker
