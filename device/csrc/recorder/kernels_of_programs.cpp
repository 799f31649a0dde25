// Kernels that a program brings of its own (forebay/facade/triton.py): they go to the worker once, and launches of them are recorded.
#include "recorder/kernels_of_programs.h"

#include <c10/util/Exception.h>

#include "recorder/recorder.h"
#include "runtime/storage.h"
#include "stream/stream.h"

namespace forebay {

using wire::Command;
using wire::Reply;

std::optional<KernelRefusal> define_kernel(CommandStream& stream, uint64_t kernel, const std::string& source) {
  stream.lease().need();
  stream.check_stopped();
  auto& kernels = Recorder::of(stream.device()).kernels();
  const uint64_t generation = stream.generation();
  std::optional<KernelRefusal> refusal;
  wire::Writer definition;
  uint64_t asked = 0;
  stream.ask_aside(
      [&](wire::Writer& out, uint64_t request) {
        const auto& no_kernels = stream.worker().no_kernels;
        if (!no_kernels.empty()) refusal = {wire::FailureCode::kUnsupported, no_kernels};
        if (refusal || kernels.contains(kernel)) return false;
        definition.command(Command::kKernel);
        definition.varint(asked = request);
        definition.varint(kernel);
        definition.raw(source.data(), source.size());
        out.raw(definition.bytes().data(), definition.size());
        return true;
      },
      [&](Reply reply, wire::Reader& body) {
        if (reply == Reply::kFailure) {
          const ToldFailure failure = told_failure(body, generation);
          refusal = {failure.code, failure.message};
          return;
        }
        const std::lock_guard lock(stream.commands().mutex());
        if (generation != stream.generation()) return;
        kernels.insert(kernel);
        stream.commands().definitions().add_awaited(asked, definition);
      },
      AskedCommand::Kind::kDefinition);
  return refusal;
}

namespace {

void put_argument(wire::Writer& out, const LaunchArgument& argument) {
  out.u8(argument.tensor.defined());
  if (!argument.tensor.defined()) return out.u64(argument.bits);
  out.varint(handle_of(*argument.tensor.unsafeGetTensorImpl()).id);
  out.varint(static_cast<uint64_t>(argument.tensor.storage_offset()) * argument.tensor.element_size());
}

// False if the worker has no such kernel.
bool launch(CommandStream& stream, uint64_t generation, uint64_t kernel, const std::function<void(wire::Writer&)>& append) {
  return stream.record(generation, [&](wire::Writer& out) {
    if (!Recorder::of(stream.device()).kernels().contains(kernel)) return false;
    out.command(Command::kLaunch);
    out.varint(kernel);
    append(out);
    return true;
  });
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
  while (!launch(stream, stream.generation(), kernel, append)) {
    const auto refusal = define_kernel(stream, kernel, source);
    TORCH_CHECK_NOT_IMPLEMENTED(!refusal, refusal->why);
  }
}

}  // namespace forebay
