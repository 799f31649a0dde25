// Which operator goes where. The virtual device serves an operator by recording it, unless this side must do it (kernels.cpp),
// or it is made of others (compositions.cpp, and PyTorch's own composite kernels).
#include "aten/registration.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "aten/kernel_table.h"
#include "base/operator_info.h"
#include "forebay/operators.h"
#include "recorder/recorder.h"

namespace forebay {
namespace {

// Composite in PyTorch, but recorded whole: the worker knows better how to do them on its device, and one command is cheaper than many.
const std::unordered_set<std::string_view>& recorded_whole() {
  static const std::unordered_set<std::string_view> names{
      "aten::convolution", "aten::convolution_backward", "aten::native_group_norm", "aten::linalg_lstsq", "aten::mode", "aten::conj_physical_",
      "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_efficient_attention_backward",
  };
  return names;
}

class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : info_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { record(stack); }
  void record(torch::jit::Stack* stack) {
    const size_t count = info_.arguments.size();
    if (stack->size() == count) {
      Recorder::of(info_, *stack).record(info_, *stack);
      return;
    }
    torch::jit::Stack arguments(std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(count)), std::make_move_iterator(stack->end()));
    stack->resize(stack->size() - count);
    Recorder::of(info_, arguments).record(info_, arguments);
    std::move(arguments.begin(), arguments.end(), std::back_inserter(*stack));
  }

 private:
  OperatorInfo info_;
};

// torch.jit.trace writes down the parts of a convolution, not itself: while it looks on, it is called by the part that it knows.
class ConvolutionKernel final : public c10::OperatorKernel {
 public:
  explicit ConvolutionKernel(const c10::OperatorHandle& op) : record_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (!c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Tracer)) [[likely]] {
      return record_.record(stack);
    }
    static const auto part = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "");
    const auto& context = at::globalContext();
    torch::jit::push(*stack, context.benchmarkCuDNN(), context.deterministicCuDNN(), context.userEnabledCuDNN(), context.allowTF32CuDNN());
    part.callBoxed(stack);
  }

 private:
  RecordKernel record_;
};

// The part's: the convolution itself, recorded.
void record_convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static RecordKernel kernel(c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", ""));
  torch::jit::drop(*stack, 4);  // what is for a vendor's library
  kernel.record(stack);
}

// A sparse gradient of bags is made here, as of any device, by operators on its parts.
class BagGradientKernel final : public c10::OperatorKernel {
 public:
  explicit BagGradientKernel(const c10::OperatorHandle& op)
      : record_(op), sparse_(op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)), flag_(op.schema().argumentIndexWithName("sparse").value()) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto& is_sparse = torch::jit::peek(*stack, static_cast<size_t>(flag_), op.schema().arguments().size());
    if (is_sparse.toBool()) return sparse_.callBoxed(op, keys, stack);
    record_.record(stack);
  }

 private:
  RecordKernel record_;
  c10::SafeKernelFunction sparse_;
  int flag_;
};

torch::CppFunction kernel_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  if (name.name == "aten::_embedding_bag_backward") return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BagGradientKernel>(op));
  if (name.name == "aten::convolution" && name.overload_name.empty()) return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ConvolutionKernel>(op));
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(op));
}

bool is_recorded(const c10::OperatorHandle& op, const OperatorInfo& info) {
  if (info.views || !info.supported || op.hasTag(at::Tag::inplace_view)) return false;
  if (info.name == "aten::view_copy") return false;  // the composite one copies what cannot be viewed; the meta kernel refuses it
  if (recorded_whole().contains(info.name)) return true;
  if (std::string_view(info.name).starts_with("aten::_foreach_")) return true;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// What a strided nested tensor consists of is in host memory on every device. Autograd asks for it where nothing may raise.
void describe_nested(const c10::OperatorHandle& op, torch::jit::Stack* stack) { op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack); }

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(), " is not available for strided nested tensors on the virtual device; make them with layout=torch.jagged");
}

// PyTorch warns of kernels that give way to others, which is what we are here for.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  const auto& name = op.operator_name();
  TORCH_CHECK_NOT_IMPLEMENTED(name.getNamespace() == "aten" || !op.hasKernelForDispatchKey(c10::DispatchKey::CPU), name,
                              " has a kernel for the CPU, and none for cuda: register one that is made of PyTorch's operators, as with @torch.library.register_kernel(\"",
                              name.name, "\", \"cuda\"), or call it with tensors on the CPU: x.cpu()");
  TORCH_CHECK_NOT_IMPLEMENTED(name.getNamespace() == "aten", name,
                              " is not available on the virtual device: the package that it comes from makes it of kernels for devices of its own, not of PyTorch's operators; "
                              "use what torch has in its place (torch.nn, torch.optim), or run it on the CPU: x.cpu()");
  TORCH_CHECK_NOT_IMPLEMENTED(false, name,
                              " is not available on the virtual device, or not for tensors of this layout; "
                              "run it on the CPU: x.cpu()");
}

void install_operators() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  static auto* kernels = new KernelTable(c10::DispatchKey::CUDA);
  register_kernels(*kernels);
  register_compositions(*kernels);
  register_batch_norm(*kernels);
  register_attention(*kernels);
  register_recurrent(*kernels);
  register_jagged(*kernels);
  kernels->impl("_convolution", torch::CppFunction::makeFromBoxedFunction<&record_convolution>());
  register_collectives(*kernels);
  static auto* coo = new KernelTable(c10::DispatchKey::SparseCUDA);
  static auto* compressed = new KernelTable(c10::DispatchKey::SparseCsrCUDA);
  register_sparse(*kernels, *coo, *compressed);
  static auto* autograd = new KernelTable(c10::DispatchKey::AutogradCUDA);
  register_attention(*autograd);
  register_recurrent(*autograd);
  auto& dispatcher = c10::Dispatcher::singleton();
  define_own_operators();
  for (const auto& own : wire::kOwnOperators) {
    kernels->impl("forebay", own.name, kernel_of(dispatcher.findSchemaOrThrow((std::string(wire::kOwnNamespace) + own.name).c_str(), "")));
  }
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!std::string_view(name.name).starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (kernels->holds(*op)) continue;
    const OperatorInfo info(*op);
    if (!is_recorded(*op, info)) continue;
    const std::string local = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (!wire::is_listed(local)) continue;  // PyTorch's composite kernel, or the fallback's refusal
    kernels->impl(local, kernel_of(*op));
    recorded().push_back(local);
  }
  static auto* nested = new KernelTable(c10::DispatchKey::NestedTensorCUDA);
  for (const char* name : {"_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"}) {
    nested->impl(name, torch::CppFunction::makeFromBoxedFunction<&describe_nested>());
  }
  for (auto* table : {kernels, coo, compressed, new KernelTable(c10::DispatchKey::QuantizedCUDA), nested}) {
    take_over(*table, *autograd);
    auto* fallback = new torch::Library(torch::Library::IMPL, "_", table->key(), __FILE__, __LINE__);  // for as long as the process
    fallback->fallback(table == nested ? torch::CppFunction::makeFromBoxedFunction<&refuse_nested>() : torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

std::vector<std::string>& recorded() {
  static auto* names = new std::vector<std::string>;
  return *names;
}

}  // namespace forebay
