// Programs that a device compiles and carries out as a whole, of another framework than PyTorch: forebay_worker/user_code/programs.py has the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
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
  // Carries the program out, and returns when that is done. Inputs and outputs are those of each of its devices, one device after the other. Each input
  // has at least as many bytes as the signature says, and is not written to. `is_counted`: outputs are under the limit of base/memory.h; else the
  // caller has found room for them. Throws CommandError, c10::OutOfMemoryError.
  virtual std::vector<c10::Storage> run(const std::vector<c10::Storage>& inputs, bool is_counted) = 0;
};

// Calls functions of the client for a program that is being carried out.
class CallbackHost {
 public:
  CallbackHost() = default;
  virtual ~CallbackHost() = default;
  CallbackHost(const CallbackHost&) = delete;
  CallbackHost& operator=(const CallbackHost&) = delete;

  // The program of this request begins; with `end` it is done, which throws what came between this worker and its client.
  virtual void begin(uint64_t request) = 0;
  virtual void end() = 0;
  // From any thread of the program. What the function returned, or the sentence why it returned nothing. Throws where the client does not answer.
  virtual std::variant<wire::CallbackArrays, std::string> call(uint64_t number, const wire::CallbackArrays& arrays) = 0;
};

// What a device compiles programs by.
struct ProgramHost {
  std::string refused = "this worker takes no programs of JAX; its operator installs forebay-worker[xla]";  // empty: it does
  // Throws CommandError.
  std::function<std::unique_ptr<Executable>(const std::string& module, const wire::ProgramPlacement& placement, CallbackHost& callbacks)> compile{};
};

}  // namespace forebay::worker
