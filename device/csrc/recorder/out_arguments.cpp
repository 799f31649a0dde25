#include "recorder/out_arguments.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include <limits>
#include <mutex>
#include <unordered_map>

#include "base/leaf_mutex.h"

namespace forebay {
namespace {

using torch::jit::Stack;

// Whether one takes what the other takes besides its `out`, and returns as much, newly made.
bool is_functional_of(const c10::FunctionSchema& one, const c10::FunctionSchema& other) {
  std::vector<const c10::Argument*> inputs;
  for (const auto& argument : other.arguments()) {
    if (!argument.is_out()) inputs.push_back(&argument);
  }
  if (one.arguments().size() != inputs.size() || one.returns().size() != other.arguments().size() - inputs.size()) return false;
  for (size_t index = 0; index < inputs.size(); ++index) {
    const auto& argument = one.arguments()[index];
    if (argument.name() != inputs[index]->name() || *argument.real_type() != *inputs[index]->real_type()) return false;
    if ((argument.alias_info() == nullptr) != (inputs[index]->alias_info() == nullptr)) return false;
  }
  return true;
}

// The operator of the same name that makes its results itself, if the virtual device has it.
std::optional<c10::OperatorHandle> functional_of(const OperatorInfo& info) {
  static auto* found = new std::unordered_map<const OperatorInfo*, std::optional<c10::OperatorHandle>>;
  static auto* mutex = new LeafMutex;
  const std::lock_guard lock(*mutex);
  if (const auto known = found->find(&info); known != found->end()) return known->second;
  auto& dispatcher = c10::Dispatcher::singleton();
  std::optional<c10::OperatorHandle> functional;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name != info.name || name.overload_name == info.overload) continue;
    const auto op = dispatcher.findSchema(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && is_functional_of(op->schema(), info.op.schema())) functional = op;
  }
  return found->emplace(&info, functional).first->second;
}

// What PyTorch's kernels refuse before they look at anything else: an `out` whose elements share memory, and, where the data says how many elements
// are taken, one that is read from.
void check_overlaps(const c10::OperatorHandle& functional, const Stack& inputs, const Stack& outs) {
  const bool selects = functional.hasTag(at::Tag::dynamic_output_shape);
  for (const auto& out : outs) {
    at::assert_no_internal_overlap(out.toTensor());
    for (const auto& input : inputs) {
      if (!input.isTensor() || !input.toTensor().defined()) continue;
      selects ? at::assert_no_overlap(out.toTensor(), input.toTensor()) : at::assert_no_partial_overlap(out.toTensor(), input.toTensor());
    }
  }
}

void copy_to(const at::Tensor& out, const at::Tensor& result, const OperatorInfo& info) {
  TORCH_CHECK(info.name != "aten::nonzero" || out.scalar_type() == result.scalar_type(), "nonzero: Expected out tensor to have scalar type ",
              result.scalar_type(), " but got scalar type", out.scalar_type());
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), info.name, ": result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

}  // namespace

bool has_strided_out(const OperatorInfo& info, const Stack& stack) {
  for (size_t index = 0; index < stack.size(); ++index) {
    if (!info.arguments[index].out || !stack[index].isTensor()) continue;
    const auto& out = stack[index].toTensor();
    if (out.defined() && out.numel() > 0 && !out.is_contiguous()) return true;
  }
  return false;
}

bool record_without_out(const OperatorInfo& info, Stack& stack) {
  const auto functional = functional_of(info);
  if (!functional) return false;
  Stack inputs, outs;
  for (size_t index = 0; index < stack.size(); ++index) (info.arguments[index].out ? outs : inputs).push_back(stack[index]);
  for (const auto& out : outs) {
    if (!out.isTensor() || !out.toTensor().is_cuda()) return false;
  }
  check_overlaps(*functional, inputs, outs);
  const at::AutoDispatchBelowADInplaceOrView below;
  functional->callBoxed(&inputs);
  for (size_t index = 0; index < outs.size(); ++index) copy_to(outs[index].toTensor(), inputs[index].toTensor(), info);
  stack = std::move(outs);
  return true;
}

bool size_statistics(const OperatorInfo& info, Stack& stack) {
  if (info.name != "aten::_fused_moving_avg_obs_fq_helper" || !stack[11].toBool()) return false;
  const auto &self = stack[0].toTensor(), &running_min = stack[3].toTensor(), &running_max = stack[4].toTensor();
  if (running_min.numel() != 0 || self.dim() == 0) return false;
  const int64_t size = self.size(stack[10].toInt());
  if (size == 0) return false;
  for (size_t index = 3; index <= 6; ++index) stack[index].toTensor().resize_({size});
  running_min.fill_(std::numeric_limits<double>::infinity());
  running_max.fill_(-std::numeric_limits<double>::infinity());
  return true;
}

}  // namespace forebay
