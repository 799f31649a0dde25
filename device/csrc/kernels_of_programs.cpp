// Kernels that a program brings of its own (forebay/facade/triton.py): they go to the worker once, and launches of them are recorded.
#include "kernels_of_programs.h"

#include <c10/util/Exception.h>

#include "recorder.h"
#include "storage.h"
#include "stream.h"

namespace forebay {

using wire::Command;
using wire::Reply;

// Waits until the worker has compiled it; the lease is not needed for that.
std::optional<CommandStream::KernelRefusal> CommandStream::define_kernel(uint64_t number, const std::string& source) {
  need_lease();
  check_stopped();
  const WithoutGil free;
  const WaitClock clock(waited_ns_);
  const auto receive_lock = lock_to_receive();
  const uint64_t request = new_request();
  {
    const std::lock_guard lock(mutex_);
    if (!no_kernels_.empty()) return KernelRefusal{wire::FailureCode::kUnsupported, no_kernels_};
    if (Recorder::of(device_).kernels().count(number) != 0) return std::nullopt;
    open_frame();
    pending_.command(Command::kKernel);
    pending_.varint(request);
    pending_.varint(number);
    pending_.raw(source.data(), source.size());
    appended();
  }
  flush(Wait::kYes);
  std::optional<KernelRefusal> refusal;
  receive(request, [&](Reply reply, wire::Reader& body) {
    if (reply == Reply::kFailure) {
      const ToldFailure failure = told_failure(body, heard_generation_);
      refusal = {failure.code, failure.message};
      return;
    }
    const std::lock_guard lock(mutex_);
    if (heard_generation_ == generation()) Recorder::of(device_).kernels().insert(number);
  });
  return refusal;
}

bool CommandStream::launch(uint64_t generation, uint64_t kernel, const std::function<void(wire::Writer&)>& append) {
  return carry(generation, [&](wire::Writer& out) {
    if (Recorder::of(device_).kernels().count(kernel) == 0) return false;
    out.command(Command::kLaunch);
    out.varint(kernel);
    append(out);
    return true;
  });
}

namespace {

void put_argument(wire::Writer& out, const LaunchArgument& argument) {
  out.u8(argument.tensor.defined());
  if (!argument.tensor.defined()) return out.u64(argument.bits);
  out.varint(handle_of(*argument.tensor.unsafeGetTensorImpl()).id);
  out.varint(static_cast<uint64_t>(argument.tensor.storage_offset()) * argument.tensor.element_size());
}

}  // namespace

void launch_kernel(c10::DeviceIndex device, uint64_t kernel, const std::string& source, const std::array<uint64_t, 3>& grid,
                   const std::vector<LaunchArgument>& arguments) {
  auto& stream = CommandStream::of(device);
  for (const auto& [tensor, bits] : arguments) {
    if (!tensor.defined()) continue;
    TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.get_device() == device, "Pointer argument cannot be accessed from Triton on cuda:", static_cast<int>(device),
                      ": it is a tensor of ", tensor.device());
    auto& handle = handle_of(*tensor.unsafeGetTensorImpl());
    stream.contents().forget(handle);
  }
  const auto append = [&](wire::Writer& out) {
    for (const uint64_t size : grid) out.varint(size);
    out.varint(arguments.size());
    for (const auto& argument : arguments) put_argument(out, argument);
  };
  while (!stream.launch(stream.generation(), kernel, append)) {
    const auto refusal = stream.define_kernel(kernel, source);
    TORCH_CHECK_NOT_IMPLEMENTED(!refusal, refusal->why);
  }
}

}  // namespace forebay
