// Every other operator. At the call: what comes out, by a run on meta tensors; its memory; and a job that computes it on the host's kernels. What no
// meta kernel can tell, and what gives a number, waits for the stream and runs at once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "device.h"
#include "kernels.h"
#include "runtime.h"

namespace standin {

namespace {

using torch::jit::Stack;

bool is_here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().is_privateuseone(); }

// The value with each tensor in it replaced.
c10::IValue with_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& replaced) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(replaced(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replaced(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(replaced(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  });
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

bool gives_tensors_alone(const c10::FunctionSchema& schema) {
  for (const auto& returned : schema.returns()) {
    const auto type = returned.type()->str();
    if (type != "Tensor" && type != "Tensor[]") return false;
  }
  return !schema.returns().empty() || std::any_of(schema.arguments().begin(), schema.arguments().end(), is_written);
}

// Gives a tensor the conjugate and negative bits of another.
void mark(const at::Tensor& tensor, const at::Tensor& other) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (other.is_conj()) impl->_set_conj(true);
  if (other.is_neg()) impl->_set_neg(true);
}

// Tensors without memory, of the same geometry; those of one storage share one.
class Metas {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!is_here(tensor)) return tensor;
    auto& meta = tensors_[tensor.unsafeGetTensorImpl()];
    if (meta.defined()) return meta;
    auto& storage = storages_[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) {
      storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
                                                                   c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta),
                                                                   tensor.storage().unsafeGetStorageImpl()->resizable()));
    }
    meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    mark(meta, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    real_.emplace(meta.unsafeGetTensorImpl(), tensor);
    bases_.emplace(storage.unsafeGetStorageImpl(), tensor);
    return meta;
  }

  // Kernels may have given what they write to other sizes.
  void resize_written() const {
    for (const auto& [impl, tensor] : real_) {
      if (impl->sizes() != tensor.sizes() || impl->strides() != tensor.strides()) resize(tensor, impl->sizes(), impl->strides());
    }
  }

  // What a result of the meta kernel stands for: an argument, a view of one, or a new tensor (undefined where it is none).
  at::Tensor real(const at::Tensor& meta) const {
    if (!meta.defined()) return meta;
    if (const auto found = real_.find(meta.unsafeGetTensorImpl()); found != real_.end()) return found->second;
    if (const auto found = bases_.find(meta.storage().unsafeGetStorageImpl()); found != bases_.end()) {
      auto view = view_of(found->second, meta.scalar_type(), meta.sizes(), meta.strides(), meta.storage_offset());
      mark(view, meta);
      return view;
    }
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(c10::kPrivateUse1));
  }

  bool is_new(const at::Tensor& meta) const { return meta.defined() && bases_.count(meta.storage().unsafeGetStorageImpl()) == 0; }

 private:
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> real_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> bases_;
};

// The host's own generator draws for operators that take none; one at a time.
class HostDraws {
 public:
  explicit HostDraws(std::optional<uint64_t> seed) {
    if (!seed) return;
    lock_ = std::unique_lock(one_at_a_time());
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(generator.mutex());
    before_ = generator.clone();
    generator.set_current_seed(*seed);
  }
  ~HostDraws() {
    if (!lock_.owns_lock()) return;
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(generator.mutex());
    generator.set_state(at::Tensor(before_.unsafeGetGeneratorImpl()->get_state()));
  }
  HostDraws(const HostDraws&) = delete;
  HostDraws& operator=(const HostDraws&) = delete;

 private:
  static std::mutex& one_at_a_time() {
    static std::mutex mutex;
    return mutex;
  }
  std::unique_lock<std::mutex> lock_;
  at::Generator before_;
};

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack arguments) : op_(op), arguments_(std::move(arguments)) {
    find_device();
    draw();
    for (size_t index = 0; index < arguments_.size(); ++index) add(arguments_[index], is_written(op.schema().arguments()[index]));
  }

  // The results.
  Stack run() {
    const c10::DeviceGuard guard(device_);
    Stack metas;
    if (!gives_tensors_alone(op_.schema()) || !infer(metas)) return run_at_once();
    metas_.resize_written();
    return run_later(metas);
  }

 private:
  void find_device() {
    std::optional<c10::Device> found;
    for (const auto& argument : arguments_) {
      if (argument.isDevice() && argument.toDevice().is_privateuseone() && !found) found = argument.toDevice();
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (!is_here(tensor)) return;
        TORCH_CHECK(!found || !found->has_index() || *found == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                    *found, " and ", tensor.device(), "!");
        found = tensor.device();
      });
    }
    const auto index = found && found->has_index() ? found->index() : static_cast<c10::DeviceIndex>(current_device());
    device_ = c10::Device(c10::kPrivateUse1, index);
  }

  // Takes the numbers of a random operator from the generator now, whenever it runs.
  void draw() {
    if (!op_.hasTag(at::Tag::nondeterministic_seeded)) return;
    auto generator = default_generator(device_.index());
    for (auto& argument : arguments_) {
      if (argument.isGenerator()) generator = argument.toGenerator();
    }
    const std::lock_guard<std::mutex> guard(generator.mutex());
    draw_ = generator.get<StandinGenerator>()->next(Runtime::get().records(current_stream(device_.index())));
  }

  // Numbers of the host are taken as they are now.
  void add(c10::IValue& argument, bool written) {
    argument = with_tensors(argument, [&](const at::Tensor& tensor) -> at::Tensor {
      if (is_here(tensor)) {
        ranges_.push_back(range_of(tensor, written));
        return tensor;
      }
      auto copy = tensor.clone();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      return copy;
    });
  }

  // Whether a meta kernel could tell what comes out.
  bool infer(Stack& metas) {
    for (const auto& argument : arguments_) metas.push_back(on(c10::kMeta, argument, [this](const at::Tensor& tensor) { return metas_.of(tensor); }));
    try {
      op_.callBoxed(metas);
      return true;
    } catch (const std::exception&) {  // the host's kernel says what is wrong, if something is
      return false;
    }
  }

  c10::IValue on(c10::DeviceType type, const c10::IValue& argument, const std::function<at::Tensor(const at::Tensor&)>& replaced) const {
    if (argument.isDevice()) return c10::Device(type);
    if (argument.isGenerator()) return {};  // set when it runs
    return with_tensors(argument, replaced);
  }

  Stack on_host(Shadows& shadows) const {
    Stack stack;
    for (const auto& argument : arguments_) {
      stack.push_back(on(c10::kCPU, argument, [&](const at::Tensor& tensor) { return is_here(tensor) ? shadows.of(tensor) : tensor; }));
    }
    return stack;
  }

  static void compute(const c10::OperatorHandle& op, Stack& stack, const std::optional<Draw>& draw) {
    const auto seed = draw ? std::optional((*draw)()) : std::nullopt;
    for (size_t index = 0; seed && index < stack.size(); ++index) {
      if (op.schema().arguments()[index].type()->str() == "Generator?") stack[index] = at::detail::createCPUGenerator(*seed);
    }
    const HostDraws draws(seed);
    op.callBoxed(stack);
  }

  Stack run_later(const Stack& metas) {
    Stack results;
    Shadows shadows;
    std::vector<std::vector<at::Tensor>> targets;  // of each result; undefined where the kernel writes to an argument
    bool makes = false;
    for (const auto& value : metas) {
      auto& list = targets.emplace_back();
      results.push_back(with_tensors(value, [&](const at::Tensor& meta) {
        const auto real = metas_.real(meta);
        list.push_back(metas_.is_new(meta) && real.numel() != 0 ? shadows.of(real) : at::Tensor());
        if (list.back().defined()) ranges_.push_back(range_of(real, true));
        makes = makes || list.back().defined();
        return real;
      }));
    }
    const bool writes = std::any_of(op_.schema().arguments().begin(), op_.schema().arguments().end(), is_written);
    if (!makes && !writes) return results;  // views
    renew_written_ranges();
    auto arguments = std::make_shared<const Stack>(on_host(shadows));
    const auto submit = is_proven() ? &Runtime::submit : &Runtime::submit_unproven;
    (Runtime::get().*submit)(current_stream(device_.index()), op_.schema().name(), ranges_, [op = op_, arguments, targets, draw = draw_] {
      Stack stack(*arguments);  // a graph runs it again
      compute(op, stack, draw);
      for (size_t index = 0; index < targets.size(); ++index) {
        size_t item = 0;
        for_each_tensor(stack[index], [&](const at::Tensor& made) {
          if (targets[index][item].defined()) targets[index][item].copy_(made);
          ++item;
        });
      }
    });
    return results;
  }

  // Whether the operator ran with such dtypes before; if not, now.
  bool is_proven() const {
    static std::mutex mutex;
    static auto* proven = new std::set<std::string>;
    std::string key = op_.schema().name() + "." + op_.schema().overload_name();
    for (const auto& argument : arguments_) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) { key += " " + std::string(c10::toString(tensor.scalar_type())); });
    }
    const std::lock_guard<std::mutex> guard(mutex);
    return !proven->insert(std::move(key)).second;
  }

  // An argument may have grown.
  void renew_written_ranges() {
    for (size_t index = 0; index < arguments_.size(); ++index) {
      if (!is_written(op_.schema().arguments()[index])) continue;
      for_each_tensor(arguments_[index], [&](const at::Tensor& tensor) {
        if (is_here(tensor)) ranges_.push_back(range_of(tensor, true));
      });
    }
  }

  Stack run_at_once() {
    Shadows shadows;
    Stack stack = on_host(shadows);
    Runtime::get().submit_and_wait(current_stream(device_.index()), op_.schema().name(), ranges_, [&] { compute(op_, stack, draw_); });
    Stack results;
    for (const auto& value : stack) results.push_back(with_tensors(value, [&](const at::Tensor& made) { return brought_back(made, stack); }));
    return results;
  }

  // A result of the host's kernel: the argument that it is, or a tensor on the device.
  at::Tensor brought_back(const at::Tensor& made, const Stack&) const {
    if (!made.defined() || made.layout() != c10::kStrided) return made;
    for (const auto& argument : arguments_) {
      at::Tensor same;
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_here(tensor) && shadow_of(tensor.storage().data()) == made.storage().data() && tensor.storage().data() != nullptr) same = tensor;
      });
      if (!same.defined()) continue;
      const bool whole = same.sizes() == made.sizes() && same.strides() == made.strides() && same.storage_offset() == made.storage_offset();
      return whole ? same : view_of(same, made.scalar_type(), made.sizes(), made.strides(), made.storage_offset());
    }
    auto here = at::empty_strided(made.sizes(), made.strides(), made.options().device(device_));
    here.copy_(made);
    return here;
  }

  const c10::OperatorHandle& op_;
  Stack arguments_;
  c10::Device device_{c10::kPrivateUse1, 0};
  std::optional<Draw> draw_;
  std::vector<Range> ranges_;
  Metas metas_;
};

void run_boxed(const c10::OperatorHandle& op, Stack* stack) {
  Call call(op, torch::jit::pop(*stack, op.schema().arguments().size()));
  for (auto& result : call.run()) stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>()); }

// Composite in PyTorch, of parts that only its own devices have.
constexpr std::array<std::string_view, 6> kWhole{"convolution", "convolution_backward", "native_group_norm", "linalg_lstsq", "mode", "conj_physical_"};

// Those, and what the host computes otherwise than by PyTorch's composite kernel: then results have the host's bits.
bool is_run_whole(const c10::OperatorHandle& op) {
  const std::string_view name = std::string_view(op.schema().name()).substr(std::string_view("aten::").size());
  if (std::find(kWhole.begin(), kWhole.end(), name) != kWhole.end()) return op.schema().overload_name().empty();
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = name.name.starts_with("aten::") ? c10::Dispatcher::singleton().findSchema(name) : std::nullopt;
    if (!op || !is_run_whole(*op)) continue;
    library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  }
}

}  // namespace

}  // namespace standin
