// Programs that a device compiles and carries out as a whole, of another framework than PyTorch: forebay_worker/user_code/programs.py has the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Storage.h>
#include <forebay/programs.h>

namespace forebay::worker {

// A compiled program.
class Executable {
 public:
  Executable() = default;
  virtual ~Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  virtual const wire::ProgramSignature& signature() const = 0;
  // Carries the program out, and returns when that is done. Each input has at least as many bytes as the signature says, and is not written to.
  // Throws CommandError, c10::OutOfMemoryError.
  virtual std::vector<c10::Storage> run(const std::vector<c10::Storage>& inputs) = 0;
};

// What a device compiles programs by.
struct ProgramHost {
  std::string refused = "this worker takes no programs of JAX; its operator installs forebay-worker[xla]";  // empty: it does
  // Throws CommandError.
  std::function<std::unique_ptr<Executable>(const std::string& module)> compile{};
};

}  // namespace forebay::worker
