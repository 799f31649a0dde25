#include "recorder/inference.h"

#include <ATen/Functions.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/leaf_mutex.h"
#include "recorder/sparse.h"
#include "recorder/structured.h"
#include "runtime/storage.h"

namespace forebay {
namespace {

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  if (is_sparse(tensor)) return at::empty(tensor.sizes(), at::device(at::kMeta).dtype(tensor.dtype()));  // what is made of it is dense
  auto meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (tensor.is_conj()) meta._set_conj(true);
  if (tensor.is_neg()) meta._set_neg(true);
  return meta;
}

c10::IValue to_meta(const c10::IValue& value) {
  if (value.isTensor()) return to_meta(value.toTensor());
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return {};
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& item : value.toListRef()) list.push_back(to_meta(item.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef()) {
      list.push_back(item.isNone() ? std::optional<at::Tensor>() : std::optional(to_meta(item.toTensor())));
    }
    return list;
  }
  return value;
}

// Operators of which PyTorch's kernels for meta tensors have told something wrong.
class Distrusted {
 public:
  static Distrusted& get() {
    static auto* names = new Distrusted;
    return *names;
  }
  bool holds(const std::string& name) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    return names_.contains(name);
  }
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
    any_ = true;
  }

 private:
  LeafMutex mutex_;
  std::unordered_set<std::string> names_;
  std::atomic<bool> any_{false};
};

constexpr int64_t kHostBytesMax = 64 << 20;

// Zeros of the same geometry on the host, counted against what is left.
c10::IValue to_host(const c10::IValue& value, int64_t& left) {
  const auto host = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    if (is_sparse(tensor)) return sample_on_host(tensor);
    left -= static_cast<int64_t>(at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(), 0));
    return left < 0 ? tensor : at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).pinned_memory(std::nullopt)).zero_();
  };
  if (value.isTensor()) return host(value.toTensor());
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& item : value.toListRef()) list.push_back(host(item.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef()) list.push_back(item.isNone() ? std::optional<at::Tensor>() : std::optional(host(item.toTensor())));
    return list;
  }
  return value;
}

// A call as it was tried on tensors that hold no data of the program.
struct Trial {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};

// What is tried draws from a generator of its own, so that the program's on the CPU stays as it is.
at::Generator generator_of_trials() {
  static const auto* generator = new at::Generator(at::detail::createCPUGenerator());
  return *generator;
}

// Meta kernels in Python word their errors otherwise than native ones, which programs know, and a few refuse what native ones take:
// throws what a native kernel throws for such arguments, if they are small enough to try, or tells what it gives.
std::optional<Trial> try_on_host(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.random && !info.generator) return std::nullopt;
  int64_t left = kHostBytesMax;
  Trial trial;
  for (const auto& value : stack) trial.arguments.push_back(to_host(value, left));
  if (info.generator) trial.arguments[static_cast<size_t>(*info.generator)] = generator_of_trials();
  if (left < 0) return std::nullopt;
  trial.results = trial.arguments;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    info.op.callBoxed(&trial.results);
  } catch (const c10::NotImplementedError& error) {
    if (std::string_view(error.what_without_backtrace()).starts_with("Could not run")) return std::nullopt;  // the CPU has no such kernel
    throw;
  }
  return trial;
}

// Operators with sparse arguments, by what decides whether the native kernel takes them; as far as it has been tried.
class Combinations {
 public:
  bool hold(const std::vector<int64_t>& one) {
    const std::lock_guard lock(mutex_);
    return known_.contains(one);
  }
  void add(std::vector<int64_t> one) {
    const std::lock_guard lock(mutex_);
    known_.insert(std::move(one));
  }

 private:
  LeafMutex mutex_;
  std::set<std::vector<int64_t>> known_;
};

// Which of the sizes seen so far it is: kernels compare sizes with each other, whatever they are.
int64_t number_of(int64_t size, std::vector<int64_t>& sizes) {
  const auto found = std::find(sizes.begin(), sizes.end(), size);
  const auto number = found - sizes.begin();
  if (found == sizes.end()) sizes.push_back(size);
  return number;
}

std::vector<int64_t> combination_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<int64_t> one{static_cast<int64_t>(reinterpret_cast<uintptr_t>(&info)), static_cast<int64_t>(c10::get_default_dtype_as_scalartype())};
  std::vector<int64_t> sizes;
  for (const auto& value : stack) {
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    one.push_back(is_tensor);
    if (!is_tensor) continue;
    const auto& tensor = value.toTensor();
    one.insert(one.end(), {static_cast<int64_t>(tensor.layout()), static_cast<int64_t>(tensor.scalar_type()), tensor.dim(), tensor.is_cuda()});
    for (const int64_t size : tensor.sizes()) one.push_back(size < 2 ? size : 2 + number_of(size, sizes));
  }
  return one;
}

// The kernel for meta tensors takes sparse ones for dense: throws what a native kernel throws for these types and layouts.
void check_combination(const OperatorInfo& info, const torch::jit::Stack& stack) {
  static auto* tried = new Combinations;
  auto one = combination_of(info, stack);
  if (!tried->hold(one) && try_on_host(info, stack)) tried->add(std::move(one));
}

// Whether the operator's kernel for meta tensors ran; false where it has none, or one in Python that trips over its own code.
bool run_on_meta(const OperatorInfo& info, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto* structured = info.sparse ? nullptr : structured_kernel(info.name, info.overload);
  try {
    if (structured != nullptr) {
      structured->callBoxed(info.op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } else {
      info.op.callBoxed(&stack);
    }
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    if (error.matches(PyExc_NotImplementedError) || error.matches(PyExc_TypeError)) return false;
    throw;
  } catch (python_error& error) {
    const pybind11::gil_scoped_acquire gil;
    error.restore();
    if (PyErr_ExceptionMatches(PyExc_NotImplementedError) || PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      return false;
    }
    error.persist();
    throw;
  }
}

// Whether what is being handled is no error of an operator's, but an interrupt (Ctrl-C) of its kernel in Python, or the interpreter's end.
bool is_interrupt() {
  try {
    throw;
  } catch (pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    return !error.matches(PyExc_Exception);
  } catch (python_error& error) {
    const pybind11::gil_scoped_acquire gil;
    error.restore();
    const bool interrupt = PyErr_ExceptionMatches(PyExc_Exception) == 0;
    error.persist();
    return interrupt;
  } catch (...) {
    return false;
  }
}

ResultGeometry geometry_of(const at::Tensor& meta) {
  ResultGeometry result;
  result.defined = meta.defined();
  if (!result.defined) return result;
  result.dtype = meta.scalar_type();
  result.sizes = meta.sizes().vec();
  result.strides = meta.strides().vec();
  result.storage_bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(result.sizes, result.strides, meta.dtype().itemsize(), 0));
  return result;
}

void take_geometry(const at::Tensor& tensor, const ResultGeometry& grown) {
  const auto bytes =
      static_cast<int64_t>(at::detail::computeStorageNbytes(grown.sizes, grown.strides, c10::elementSize(grown.dtype), tensor.storage_offset()));
  if (static_cast<int64_t>(tensor.storage().nbytes()) < bytes) resize_storage(tensor.storage(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(grown.sizes, grown.strides);
}

// What the operator writes to, lists flattened.
std::vector<at::Tensor> written_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (size_t index = 0; index < info.arguments.size(); ++index) {
    if (!info.arguments[index].written) continue;
    if (stack[index].isTensor()) {
      tensors.push_back(stack[index].toTensor());
    } else if (stack[index].isTensorList()) {
      for (const auto& item : stack[index].toListRef()) tensors.push_back(item.toTensor());
    }
  }
  return tensors;
}

// Of the tensors that the operator has given another size.
Growth growth_of(const OperatorInfo& info, const torch::jit::Stack& stack, const torch::jit::Stack& tried) {
  const auto tensors = written_of(info, stack), others = written_of(info, tried);
  Growth growth;
  for (size_t index = 0; index < tensors.size(); ++index) {
    auto& grown = growth.written.emplace_back();
    if (!tensors[index].defined() || !tensors[index].is_cuda()) continue;
    // Whatever has its size keeps its strides, too: a few kernels in Python lay out such a tensor anew each time.
    if (tensors[index].sizes() != others[index].sizes()) grown = geometry_of(others[index]);
  }
  return growth;
}

bool has_grown(const Growth& growth) {
  return std::any_of(growth.written.begin(), growth.written.end(), [](const auto& grown) { return grown.has_value(); });
}

[[noreturn]] void refuse_growth(const at::Tensor& written, at::IntArrayRef grown) {
  TORCH_CHECK(false, "output with shape ", written.sizes(), " doesn't match the broadcast shape ", grown);
}

// Only `out` may grow. Meta kernels in Python let what is written in place grow, too.
void refuse_growth_in_place(const OperatorInfo& info, const torch::jit::Stack& stack, const Growth& growth) {
  if (info.writes_out) return;
  const auto tensors = written_of(info, stack);
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (growth.written[index]) refuse_growth(tensors[index], growth.written[index]->sizes);
  }
}

bool is_read(const OperatorInfo& info, const torch::jit::Stack& stack, const at::Tensor& tensor) {
  for (size_t index = 0; index < stack.size(); ++index) {
    if (info.arguments[index].written) continue;
    if (stack[index].isTensor() && stack[index].toTensor().is_same(tensor)) return true;
    if (!stack[index].isTensorList()) continue;
    for (const auto& item : stack[index].toListRef()) {
      if (item.toTensor().is_same(tensor)) return true;
    }
  }
  return false;
}

bool shares_memory(const c10::IValue& value, const at::Tensor& written) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cuda() || !value.toTensor().has_storage()) return false;
  return value.toTensor().is_alias_of(written);
}

// What is read would lie within what has grown.
bool shares_with_read(const OperatorInfo& info, const torch::jit::Stack& stack, const at::Tensor& written) {
  for (size_t index = 0; index < stack.size(); ++index) {
    if (!info.arguments[index].written && shares_memory(stack[index], written)) return true;
  }
  return is_read(info, stack, written);
}

// The same before such a kernel warns of it; also of what is read and given as `out`.
void refuse_broadcast_in_place(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (!info.pointwise || !info.writes) return;
  const auto written = written_of(info, stack);
  if (written.size() != 1 || !written.front().defined() || (info.writes_out && !is_read(info, stack, written.front()))) return;
  c10::DimVector sizes(written.front().sizes());
  for (const auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (!at::are_expandable(sizes, value.toTensor().sizes())) return;
    sizes = at::infer_size_dimvector(sizes, value.toTensor().sizes());
  }
  if (written.front().sizes() != sizes) refuse_growth(written.front(), sizes);
}

// Whether it lays out what it makes as its inputs lie: also a few that PyTorch does not tag as elementwise, and not a few that it does.
bool is_elementwise(const OperatorInfo& info, const torch::jit::Stack& stack) {
  constexpr std::string_view kUntagged[] = {"aten::complex", "aten::floor_divide", "aten::native_dropout_backward", "aten::polar"};
  if (!info.pointwise) return std::find(std::begin(kUntagged), std::end(kUntagged), info.name) != std::end(kUntagged);
  if (info.name == "aten::angle") return !stack[0].toTensor().is_complex();
  return !info.random && !(info.name == "aten::pow" && info.overload == "Scalar");
}

// How an elementwise operator lays out what it makes of such inputs; nothing where that is no matter of theirs, or they do not make these sizes.
std::optional<std::vector<int64_t>> strides_of_inputs(const OperatorInfo& info, const torch::jit::Stack& arguments, c10::IntArrayRef sizes) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false).declare_static_dtype_and_device(at::kFloat, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!info.arguments[index].out && arguments[index].isTensor() && arguments[index].toTensor().defined()) config.add_owned_const_input(arguments[index].toTensor());
  }
  const auto iterator = config.build();
  if (iterator.ninputs() == 0 || iterator.output().sizes() != sizes) return std::nullopt;
  return iterator.output().strides().vec();
}

// An elementwise operator lays out the `out` that it resizes as its inputs lie; meta kernels in Python lay it out anew.
void lay_out_as_inputs(const OperatorInfo& info, const torch::jit::Stack& tried, Growth& growth) {
  if (growth.written.size() != 1 || !growth.written.front()) return;
  auto& out = *growth.written.front();
  if (auto strides = strides_of_inputs(info, tried, out.sizes)) out.strides = *std::move(strides);
}

// A CPU broadcasts a few operators in place, against PyTorch's rule, which only `out` is free of.
bool grows_in_place(const OperatorInfo& info, const torch::jit::Stack& stack, const Trial& trial) {
  return !info.writes_out && has_grown(growth_of(info, stack, trial.arguments));
}

// Derivatives that are not wanted are not made, whatever a meta kernel gives for them.
void leave_out_unwanted(const OperatorInfo& info, const torch::jit::Stack& stack, torch::jit::Stack& results) {
  if (!info.output_mask) return;
  const auto wanted = stack[static_cast<size_t>(*info.output_mask)].toBoolList();
  for (size_t index = 0; index < std::min(wanted.size(), results.size()); ++index) {
    if (!wanted[index] && info.returns[index] < 0) results[index] = at::Tensor();
  }
}

Prediction prediction_of(const OperatorInfo& info, const torch::jit::Stack& outputs) {
  Prediction prediction;
  for (size_t index = 0; index < info.returns.size(); ++index) {
    Result result;
    result.argument = info.returns[index];
    if (result.argument < 0) {
      const auto& value = outputs[index];
      result.list = value.isTensorList();
      if (value.isInt()) result.number = value.toInt();
      if (result.list) {
        for (const auto& item : value.toListRef()) result.items.push_back(geometry_of(item.toTensor()));
      } else {
        result.items.push_back(geometry_of(value.isTensor() ? value.toTensor() : at::Tensor()));
      }
      for (const auto& item : result.items) prediction.new_storages += item.defined ? 1 : 0;
    }
    prediction.results.push_back(std::move(result));
  }
  return prediction;
}

Prediction only_arguments(const OperatorInfo& info) {
  Prediction prediction;
  for (const int argument : info.returns) {
    Result result;
    result.argument = argument;
    prediction.results.push_back(std::move(result));
    prediction.asks = prediction.asks || argument < 0;
  }
  return prediction;
}

void give_type(ResultGeometry& result, at::ScalarType dtype) {
  result.storage_bytes = result.storage_bytes / static_cast<int64_t>(c10::elementSize(result.dtype)) * static_cast<int64_t>(c10::elementSize(dtype));
  result.dtype = dtype;
}

// A CPU keeps a normalization's statistics in the input's type unless its parameters are of another, then in float; GPUs always widen
// half precision. A batch norm that does not train leaves them empty there.
void correct_for_cpu(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  if (!info.normalizes) return;
  const auto given = stack[0].toTensor().scalar_type();
  auto dtype = given;
  for (size_t index = 1; index < stack.size() && dtype == given; ++index) {
    if (!stack[index].isTensor() || !stack[index].toTensor().defined()) continue;
    if (stack[index].toTensor().scalar_type() != given) dtype = at::kFloat;
    break;
  }
  const bool empty = info.trains && !stack[static_cast<size_t>(*info.trains)].toBool();
  for (size_t index = 1; index < 3; ++index) {
    auto& item = prediction.results[index].items.front();
    if (empty) item = ResultGeometry{.sizes = {0}, .strides = {1}};
    give_type(item, dtype);
  }
}

// Only a CPU keeps what the derivative of a log-sigmoid needs; PyTorch's kernel for meta tensors keeps it, too.
void correct_for_gpu(const OperatorInfo& info, Prediction& prediction) {
  if (info.name != "aten::log_sigmoid_forward" || !info.overload.empty()) return;
  auto& buffer = prediction.results[1].items.front();
  buffer = ResultGeometry{.dtype = buffer.dtype, .sizes = {0}, .strides = {1}};
}

// PyTorch's kernel for meta tensors widens half precision where parameters are wider; the gradient of an input is of its type.
void keep_type_of_input(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  if (info.name != "aten::native_group_norm_backward" || !info.overload.empty()) return;
  auto& item = prediction.results.front().items.front();
  if (item.defined) give_type(item, stack[1].toTensor().scalar_type());
}

// The logarithms of attention's sums are kept as wide as they are computed. Up to 2.12 the meta kernel says float of doubles, too.
void keep_type_of_sums(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  if (info.name != "aten::_scaled_dot_product_flash_attention_for_cpu" || !info.overload.empty()) return;
  give_type(prediction.results[1].items.front(), at::toOpMathType(stack[0].toTensor().scalar_type()));
}

// Devices keep a convolution's channels last where one of its inputs has them so; the meta kernel does not say it.
void keep_channels_last(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  const bool forward = info.name == "aten::convolution";
  if (!forward && info.name != "aten::convolution_backward") return;
  const auto &input = stack[forward ? 0 : 1].toTensor(), &weight = stack[forward ? 1 : 2].toTensor();
  auto format = input.suggest_memory_format();
  if (format == at::MemoryFormat::Contiguous) format = weight.suggest_memory_format();
  if (format == at::MemoryFormat::Contiguous) return;
  for (auto& result : prediction.results) {
    for (auto& item : result.items) {
      if (!item.defined || static_cast<int64_t>(item.sizes.size()) != input.dim()) continue;
      item.strides = format == at::MemoryFormat::ChannelsLast ? c10::get_channels_last_strides_2d(item.sizes) : c10::get_channels_last_strides_3d(item.sizes);
    }
  }
}

// Devices lay out what a pool of one volume without a batch gives as that volume lies; the meta kernel does not say it.
void keep_channels_last_of_volume(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  if (info.name != "aten::max_pool3d_with_indices" || stack[0].toTensor().dim() != 4) return;
  const auto batch = stack[0].toTensor().unsqueeze(0);
  if (batch.is_contiguous() || !batch.is_contiguous(at::MemoryFormat::ChannelsLast3d)) return;
  for (auto& result : prediction.results) {
    for (auto& item : result.items) item.strides = c10::get_channels_last_strides_3d(item.sizes);
  }
}

// Meta kernels in Python lay out some elementwise results as if all inputs lay together.
void lay_out_as_inputs(const OperatorInfo& info, const torch::jit::Stack& arguments, Prediction& prediction) {
  if (!is_elementwise(info, arguments) || info.writes || prediction.results.size() != 1 || prediction.results.front().items.size() != 1) return;
  auto& item = prediction.results.front().items.front();
  const auto lies_apart = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().defined() && !value.toTensor().is_contiguous(); };
  if (!item.defined || std::none_of(arguments.begin(), arguments.end(), lies_apart)) return;
  if (auto strides = strides_of_inputs(info, arguments, item.sizes)) item.strides = *std::move(strides);
}

// Whatever the inputs do, these results lie together; meta kernels in Python do not say it.
void lay_together(const OperatorInfo& info, const torch::jit::Stack& arguments, Prediction& prediction) {
  const bool powers = info.name == "aten::pow" && info.overload == "Scalar", losses = info.name == "aten::nll_loss2d_forward";
  const bool draws = info.name == "aten::normal", angles = info.name == "aten::angle" && arguments[0].toTensor().is_complex();
  const bool as_first = info.name == "aten::huber_loss";  // or as an expanded input would, if it were copied
  if (info.writes || !(powers || losses || draws || angles || as_first)) return;
  auto& item = prediction.results.front().items.front();
  const auto strides = c10::contiguous_strides(item.sizes);
  item.strides.assign(strides.begin(), strides.end());
  if (as_first && arguments[0].toTensor().sizes() == c10::IntArrayRef(item.sizes)) item.strides = at::empty_like(arguments[0].toTensor()).strides().vec();
}

// Every device lays out the vectors of a general matrix by columns; the meta kernel does not say it.
void keep_columns_together(const OperatorInfo& info, Prediction& prediction) {
  if (info.name != "aten::linalg_eig" || !info.overload.empty()) return;
  auto& vectors = prediction.results[1].items.front();
  const size_t last = vectors.sizes.size() - 1;
  vectors.strides[last - 1] = 1;
  vectors.strides[last] = std::max<int64_t>(vectors.sizes[last - 1], 1);
}

// The loss of one sample without a batch is a number; the meta kernel makes a batch of it.
void keep_number_of_sample(const OperatorInfo& info, const torch::jit::Stack& stack, Prediction& prediction) {
  if (info.name != "aten::multi_margin_loss" || !info.overload.empty() || stack[1].toTensor().dim() != 0) return;
  auto& item = prediction.results.front().items.front();
  item.sizes.clear();
  item.strides.clear();
}

}  // namespace

bool only_worker_knows(const OperatorInfo& info) { return info.asks || Distrusted::get().holds(info.name); }

void ask_from_now_on(const std::string& name) { Distrusted::get().add(name); }

namespace {

// Indexing is of a size that its arguments do not tell only where a mask selects.
bool has_mask(const torch::jit::Stack& stack) {
  for (const auto& value : stack) {
    if (!value.isList()) continue;
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() || !item.toTensor().defined()) continue;
      const auto type = item.toTensor().scalar_type();
      if (type == at::kBool || type == at::kByte) return true;
    }
  }
  return false;
}

bool only_worker_knows(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.takes_indices && !info.writes_out && !has_mask(stack)) return Distrusted::get().holds(info.name);
  return only_worker_knows(info);
}

}  // namespace

bool part_from_written(const OperatorInfo& info, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  bool parted = false;
  for (const auto& written : written_of(info, stack)) {
    for (size_t index = 0; index < stack.size(); ++index) {
      if (info.arguments[index].written || !shares_memory(stack[index], written)) continue;
      stack[index] = stack[index].toTensor().clone();
      parted = true;
    }
  }
  return parted;
}

bool grow(const OperatorInfo& info, const torch::jit::Stack& stack, const Growth& growth) {
  const auto tensors = written_of(info, stack);
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (growth.written[index] && shares_with_read(info, stack, tensors[index])) return false;
  }
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (growth.written[index]) take_geometry(tensors[index], *growth.written[index]);
  }
  return true;
}

void check_distribution(const OperatorInfo& info, const torch::jit::Stack& stack) {
  torch::jit::Stack trial = stack;
  const auto& self = stack[0].toTensor();
  trial[0] = at::empty({0}, at::dtype(self.scalar_type()));
  trial[static_cast<size_t>(*info.generator)] = generator_of_trials();
  const at::AutoDispatchBelowADInplaceOrView below;
  info.op.callBoxed(&trial);
}

std::optional<Prediction> infer(const OperatorInfo& info, const torch::jit::Stack& stack, bool worker_is_cpu, Growth& growth) {
  if (only_worker_knows(info, stack)) {
    auto prediction = only_arguments(info);
    prediction.asks = true;
    return prediction;
  }
  refuse_broadcast_in_place(info, stack);
  Trial trial;
  for (const auto& value : stack) trial.arguments.push_back(to_meta(value));
  trial.results = trial.arguments;
  try {
    if (!run_on_meta(info, trial.results)) {
      auto prediction = only_arguments(info);
      prediction.unsized_out = info.writes_out;
      return prediction;
    }
  } catch (...) {
    if (is_interrupt()) throw;
    auto native = try_on_host(info, stack);
    if (!native || grows_in_place(info, stack, *native)) throw;
    trial = *std::move(native);
  }
  if (info.sparse) check_combination(info, stack);
  if (growth = growth_of(info, stack, trial.arguments); has_grown(growth)) {
    refuse_growth_in_place(info, stack, growth);
    if (is_elementwise(info, stack)) lay_out_as_inputs(info, trial.arguments, growth);
    if (grow(info, stack, growth)) return std::nullopt;
    auto prediction = only_arguments(info);
    prediction.read_out = true;
    return prediction;
  }
  leave_out_unwanted(info, stack, trial.results);
  auto prediction = prediction_of(info, trial.results);
  worker_is_cpu ? correct_for_cpu(info, stack, prediction) : correct_for_gpu(info, prediction);
  keep_type_of_input(info, stack, prediction);
  keep_type_of_sums(info, stack, prediction);
  keep_channels_last(info, stack, prediction);
  keep_channels_last_of_volume(info, stack, prediction);
  keep_number_of_sample(info, stack, prediction);
  keep_columns_together(info, prediction);
  lay_out_as_inputs(info, trial.arguments, prediction);
  lay_together(info, trial.arguments, prediction);
  return prediction;
}

}  // namespace forebay
