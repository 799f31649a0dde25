// A build of PyTorch with CUDA has kernels of its own where the virtual device is. They would take our addresses for a GPU's, so each
// gives way: to what the operator does in a build without CUDA, which is PyTorch's composite kernel, or else the refusal.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>

#include "aten/kernel_table.h"
#include "aten/registration.h"

namespace forebay {
namespace {

// Nobody has kernels for this kind of device, so what it gets of an operator is what every device can have.
constexpr c10::BackendComponent kUnoccupied = c10::BackendComponent::IPUBit;

class CompositeKernel final : public c10::OperatorKernel {
 public:
  explicit CompositeKernel(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) { kernel_.callBoxed(op, keys, stack); }

 private:
  c10::SafeKernelFunction kernel_;
};

torch::CppFunction substitute(const c10::OperatorHandle& op, c10::DispatchKey unoccupied) {
  if (!op.hasComputedKernelForDispatchKey(unoccupied)) return torch::CppFunction::makeFromBoxedFunction<&refuse>();
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CompositeKernel>(op.getComputedKernelForDispatchKey(unoccupied)));
}

}  // namespace

void take_over(KernelTable& ours, KernelTable& autograd) {
  const auto functionality = c10::toFunctionalityKey(ours.key());
  const auto unoccupied = c10::toRuntimePerBackendFunctionalityKey(functionality, kUnoccupied);
  const auto unoccupied_autograd = c10::getAutogradKeyFromBackend(kUnoccupied);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& full : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(full);
    if (!op || ours.holds(*op) || !op->hasKernelForDispatchKey(ours.key())) continue;
    const size_t colons = full.name.find("::");
    const std::string local = full.name.substr(colons + 2) + (full.overload_name.empty() ? "" : "." + full.overload_name);
    const std::string space = full.name.substr(0, colons);
    if (space == "fsdp") continue;  // in Python, made of PyTorch's operators
    ours.impl(space, local, substitute(*op, unoccupied));
    // With a kernel the operator has a derivative of its own, which asks for another kernel; without, its parts have theirs.
    const bool in_parts = functionality == c10::DispatchKey::Dense && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (in_parts && !autograd.holds(*op)) autograd.impl(space, local, substitute(*op, unoccupied_autograd));
  }
}

}  // namespace forebay
