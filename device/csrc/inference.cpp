#include "inference.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <utility>

#include "storage.h"

namespace forebay {
namespace {

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
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

constexpr int64_t kHostBytesMax = 64 << 20;

// Zeros of the same geometry on the host, counted against what is left.
c10::IValue to_host(const c10::IValue& value, int64_t& left) {
  const auto host = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    left -= tensor.numel() * static_cast<int64_t>(tensor.dtype().itemsize());
    return left < 0 ? tensor : at::zeros(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(std::nullopt));
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

// Meta kernels in Python word their errors otherwise than native ones, which programs know: throws what a native kernel throws for
// such arguments, if they are small enough to try, and if it throws.
void throw_native_error(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.random) return;
  int64_t left = kHostBytesMax;
  torch::jit::Stack hosts;
  for (const auto& value : stack) hosts.push_back(to_host(value, left));
  if (left < 0) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    info.op.callBoxed(&hosts);
  } catch (const c10::NotImplementedError&) {
  }
}

// Whether the operator's kernel for meta tensors ran; false where it has none, or one in Python that trips over its own code.
bool run_on_meta(const OperatorInfo& info, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    info.op.callBoxed(&stack);
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

bool same_geometry(const at::Tensor& one, const at::Tensor& other) { return one.sizes() == other.sizes() && one.strides() == other.strides(); }

void take_geometry(const at::Tensor& tensor, const at::Tensor& meta) {
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(meta.sizes(), meta.strides(), meta.dtype().itemsize(), tensor.storage_offset()));
  if (static_cast<int64_t>(tensor.storage().nbytes()) < bytes) resize_storage(tensor.storage(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
}

// An operator may give its `out` another size: then the real one takes it. Returns whether one did.
bool take_resizes(const OperatorInfo& info, const torch::jit::Stack& stack, const torch::jit::Stack& metas) {
  bool resized = false;
  const auto take = [&](const c10::IValue& value, const c10::IValue& meta) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cuda()) return;
    if (same_geometry(value.toTensor(), meta.toTensor())) return;
    take_geometry(value.toTensor(), meta.toTensor());
    resized = true;
  };
  for (size_t index = 0; index < info.arguments.size(); ++index) {
    if (!info.arguments[index].written) continue;
    if (stack[index].isTensor()) {
      take(stack[index], metas[index]);
    } else if (stack[index].isTensorList()) {
      const auto values = stack[index].toListRef(), list = metas[index].toListRef();
      for (size_t item = 0; item < values.size(); ++item) take(values[item], list[item]);
    }
  }
  return resized;
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

Prediction prediction_of(const OperatorInfo& info, const torch::jit::Stack& outputs) {
  Prediction prediction;
  for (size_t index = 0; index < info.returns.size(); ++index) {
    Result result;
    result.argument = info.returns[index];
    if (result.argument < 0) {
      const auto& value = outputs[index];
      result.list = value.isTensorList();
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
    item.storage_bytes = item.storage_bytes / static_cast<int64_t>(c10::elementSize(item.dtype)) * static_cast<int64_t>(c10::elementSize(dtype));
    item.dtype = dtype;
  }
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

}  // namespace

std::optional<Prediction> infer(const OperatorInfo& info, const torch::jit::Stack& stack, bool worker_is_cpu) {
  if (info.asks) {
    auto prediction = only_arguments(info);
    prediction.asks = true;
    return prediction;
  }
  torch::jit::Stack metas;
  for (const auto& value : stack) metas.push_back(to_meta(value));
  torch::jit::Stack outputs = metas;
  try {
    if (!run_on_meta(info, outputs)) {
      auto prediction = only_arguments(info);
      prediction.unsized_out = info.writes_out;
      return prediction;
    }
  } catch (...) {
    throw_native_error(info, stack);
    throw;
  }
  if (take_resizes(info, stack, metas)) return std::nullopt;
  auto prediction = prediction_of(info, outputs);
  if (worker_is_cpu) correct_for_cpu(info, stack, prediction);
  keep_channels_last(info, stack, prediction);
  return prediction;
}

}  // namespace forebay
