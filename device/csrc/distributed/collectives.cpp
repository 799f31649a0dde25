// Collective operations of torch.distributed. Ours (nccl) are recorded. Other process groups (gloo, mpi) read and write a tensor's address, which is
// no memory here, so they work on copies in host memory, and are done when the call returns.
#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "distributed/process_group.h"

namespace forebay {
namespace {

// The host's copies of what a call was given.
class HostCopies {
 public:
  c10::IValue of(const c10::IValue& value) {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isTensorList()) return of(value.toTensorList());
    if (!value.isList()) return value;
    const auto list = value.toList();
    if (list.elementType()->kind() != c10::TypeKind::ListType) return value;
    c10::List<c10::List<at::Tensor>> copies;
    for (const c10::IValue& item : list) copies.push_back(of(item.toTensorList()));
    return copies;
  }

  void copy_back() const {
    for (const auto& [tensor, host] : pairs_) tensor.copy_(host);
  }

 private:
  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    pairs_.emplace_back(tensor, tensor.cpu());
    return pairs_.back().second;
  }
  c10::List<at::Tensor> of(const c10::List<at::Tensor>& list) {
    c10::List<at::Tensor> copies;
    for (const at::Tensor& tensor : list) copies.push_back(of(tensor));
    return copies;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// Of a message that has been sent or received: gloo's own would wait for another one if it is waited for twice.
class Done final : public c10d::Work {
 public:
  Done() { finish(); }
};

bool is_message(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return name == "c10d::send" || name == "c10d::recv_" || name == "c10d::recv_any_source_";
}

// What DistributedDataParallel measures its phases with, in host time: a build without CUDA has none for this device, and one with CUDA asks the
// driver.
class HostTimer final : public c10d::Timer {
 public:
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to || *to < *from) return std::nullopt;
    return *to - *from;
  }
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const torch::jit::Stack given(std::make_move_iterator(stack->end() - count), std::make_move_iterator(stack->end()));
  stack->erase(stack->end() - count, stack->end());
  HostCopies copies;
  torch::jit::Stack host;
  for (const auto& value : given) host.push_back(copies.of(value));
  op.callBoxed(&host);
  for (auto& result : host) {
    if (!result.isObject()) continue;
    result.toCustomClass<c10d::Work>()->wait();
    if (is_message(op)) result = c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<Done>());
  }
  copies.copy_back();
  for (auto& result : host) {
    const bool is_given = result.isTensor() || result.isTensorList() || (result.isList() && !result.isObject());
    stack->push_back(is_given ? given.front() : std::move(result));  // the schemas give back their first argument
  }
}

class CollectiveKernel final : public c10::OperatorKernel {
 public:
  CollectiveKernel(const c10::OperatorHandle& op, size_t group) : native_(op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)), group_(group) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (!is_ours(torch::jit::peek(*stack, group_, op.schema().arguments().size()))) return run_on_host(op, stack);
    const at::AutoDispatchBelowADInplaceOrView below;
    native_.callBoxed(op, keys, stack);
  }

 private:
  static bool is_ours(const c10::IValue& value) {
    const auto group = value.toCustomClass<c10d::ProcessGroup>();
    const auto types = group->getDeviceTypes();
    return std::find(types.begin(), types.end(), c10::kCUDA) != types.end() && group->getBackend(c10::kCUDA)->getBackendName() == ProcessGroup::kName;
  }

  c10::SafeKernelFunction native_;  // which calls the process group's back end
  size_t group_;                    // the argument
};

// Which argument is the process group.
std::optional<size_t> group_argument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].type()->str().find("c10d.ProcessGroup") != std::string::npos) return index;
  }
  return std::nullopt;
}

}  // namespace

void register_collectives(KernelTable& table) {
  const auto host_timer = [](c10::Device) { return std::unique_ptr<c10d::Timer>(std::make_unique<HostTimer>()); };
  c10d::TimerRegistry()->Register(c10::kCUDA, host_timer, c10::REGISTRY_PREFERRED);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!std::string_view(name.name).starts_with("c10d::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    const std::string local = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (const auto group = group_argument(*op)) {
      table.impl("c10d", local, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CollectiveKernel>(*op, *group)));
    }
  }
}

}  // namespace forebay
