#include "recorder/structured.h"

#include <ATen/MetaFunctions.h>

#include <optional>
#include <string_view>
#include <unordered_map>

namespace forebay {
namespace {

using at::Scalar;
using at::Tensor;
using Kernels = std::unordered_map<std::string, c10::KernelFunction>;

using Unary = Tensor(const Tensor&);
using Binary = Tensor(const Tensor&, const Tensor&);
using BinaryInPlace = Tensor&(Tensor&, const Tensor&);
using Scaled = Tensor(const Tensor&, const Tensor&, const Scalar&);
using ScaledInPlace = Tensor&(Tensor&, const Tensor&, const Scalar&);
using WithScalar = Tensor(const Tensor&, const Scalar&);
using Pointwise = Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&);
using PointwiseInPlace = Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&);
using Products = Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
using Reduction = Tensor(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>);
using Extremes = Tensor(const Tensor&, at::IntArrayRef, bool);
using Places = Tensor(const Tensor&, std::optional<int64_t>, bool);
using Normalized = Tensor(const Tensor&, int64_t, bool);
using NormalizedBackward = Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType);
using Approximate = Tensor(const Tensor&, c10::string_view);
using ApproximateBackward = Tensor(const Tensor&, const Tensor&, c10::string_view);

template <class Signature, Signature* function>
c10::KernelFunction kernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(c10::CompileTimeFunctionPointer<Signature, function>());
}

void add_arithmetic(Kernels& kernels) {
  kernels.emplace("aten::add.Tensor", kernel<Scaled, at::meta::add>());
  kernels.emplace("aten::add_.Tensor", kernel<ScaledInPlace, at::meta::add_>());
  kernels.emplace("aten::sub.Tensor", kernel<Scaled, at::meta::sub>());
  kernels.emplace("aten::sub_.Tensor", kernel<ScaledInPlace, at::meta::sub_>());
  kernels.emplace("aten::mul.Tensor", kernel<Binary, at::meta::mul>());
  kernels.emplace("aten::mul_.Tensor", kernel<BinaryInPlace, at::meta::mul_>());
  kernels.emplace("aten::div.Tensor", kernel<Binary, at::meta::div>());
  kernels.emplace("aten::div_.Tensor", kernel<BinaryInPlace, at::meta::div_>());
  kernels.emplace("aten::maximum", kernel<Binary, at::meta::maximum>());
  kernels.emplace("aten::minimum", kernel<Binary, at::meta::minimum>());
  kernels.emplace("aten::pow.Tensor_Scalar", kernel<WithScalar, at::meta::pow>());
  kernels.emplace("aten::pow.Tensor_Tensor", kernel<Binary, at::meta::pow>());
  kernels.emplace("aten::addcmul", kernel<Pointwise, at::meta::addcmul>());
  kernels.emplace("aten::addcmul_", kernel<PointwiseInPlace, at::meta::addcmul_>());
  kernels.emplace("aten::addcdiv", kernel<Pointwise, at::meta::addcdiv>());
  kernels.emplace("aten::addcdiv_", kernel<PointwiseInPlace, at::meta::addcdiv_>());
}

void add_comparisons(Kernels& kernels) {
  kernels.emplace("aten::eq.Tensor", kernel<Binary, at::meta::eq>());
  kernels.emplace("aten::eq.Scalar", kernel<WithScalar, at::meta::eq>());
  kernels.emplace("aten::ne.Tensor", kernel<Binary, at::meta::ne>());
  kernels.emplace("aten::ne.Scalar", kernel<WithScalar, at::meta::ne>());
  kernels.emplace("aten::lt.Tensor", kernel<Binary, at::meta::lt>());
  kernels.emplace("aten::lt.Scalar", kernel<WithScalar, at::meta::lt>());
  kernels.emplace("aten::le.Tensor", kernel<Binary, at::meta::le>());
  kernels.emplace("aten::le.Scalar", kernel<WithScalar, at::meta::le>());
  kernels.emplace("aten::gt.Tensor", kernel<Binary, at::meta::gt>());
  kernels.emplace("aten::gt.Scalar", kernel<WithScalar, at::meta::gt>());
  kernels.emplace("aten::ge.Tensor", kernel<Binary, at::meta::ge>());
  kernels.emplace("aten::ge.Scalar", kernel<WithScalar, at::meta::ge>());
}

void add_functions(Kernels& kernels) {
  kernels.emplace("aten::neg", kernel<Unary, at::meta::neg>());
  kernels.emplace("aten::exp", kernel<Unary, at::meta::exp>());
  kernels.emplace("aten::log", kernel<Unary, at::meta::log>());
  kernels.emplace("aten::sqrt", kernel<Unary, at::meta::sqrt>());
  kernels.emplace("aten::rsqrt", kernel<Unary, at::meta::rsqrt>());
  kernels.emplace("aten::reciprocal", kernel<Unary, at::meta::reciprocal>());
  kernels.emplace("aten::sin", kernel<Unary, at::meta::sin>());
  kernels.emplace("aten::cos", kernel<Unary, at::meta::cos>());
  kernels.emplace("aten::tanh", kernel<Unary, at::meta::tanh>());
  kernels.emplace("aten::sigmoid", kernel<Unary, at::meta::sigmoid>());
  kernels.emplace("aten::silu", kernel<Unary, at::meta::silu>());
  kernels.emplace("aten::gelu", kernel<Approximate, at::meta::gelu>());
  kernels.emplace("aten::tanh_backward", kernel<Binary, at::meta::tanh_backward>());
  kernels.emplace("aten::sigmoid_backward", kernel<Binary, at::meta::sigmoid_backward>());
  kernels.emplace("aten::gelu_backward", kernel<ApproximateBackward, at::meta::gelu_backward>());
  kernels.emplace("aten::threshold_backward", kernel<Scaled, at::meta::threshold_backward>());
}

void add_reductions(Kernels& kernels) {
  kernels.emplace("aten::sum.dim_IntList", kernel<Reduction, at::meta::sum>());
  kernels.emplace("aten::mean.dim", kernel<Reduction, at::meta::mean>());
  kernels.emplace("aten::amax", kernel<Extremes, at::meta::amax>());
  kernels.emplace("aten::amin", kernel<Extremes, at::meta::amin>());
  kernels.emplace("aten::argmax", kernel<Places, at::meta::argmax>());
  kernels.emplace("aten::argmin", kernel<Places, at::meta::argmin>());
  kernels.emplace("aten::_softmax", kernel<Normalized, at::meta::_softmax>());
  kernels.emplace("aten::_log_softmax", kernel<Normalized, at::meta::_log_softmax>());
  kernels.emplace("aten::_softmax_backward_data", kernel<NormalizedBackward, at::meta::_softmax_backward_data>());
  kernels.emplace("aten::_log_softmax_backward_data", kernel<NormalizedBackward, at::meta::_log_softmax_backward_data>());
}

void add_products(Kernels& kernels) {
  kernels.emplace("aten::mm", kernel<Binary, at::meta::mm>());
  kernels.emplace("aten::bmm", kernel<Binary, at::meta::bmm>());
  kernels.emplace("aten::addmm", kernel<Products, at::meta::addmm>());
  kernels.emplace("aten::baddbmm", kernel<Products, at::meta::baddbmm>());
}

Kernels all_kernels() {
  Kernels kernels;
  add_arithmetic(kernels);
  add_comparisons(kernels);
  add_functions(kernels);
  add_reductions(kernels);
  add_products(kernels);
  return kernels;
}

}  // namespace

const c10::KernelFunction* structured_kernel(const std::string& name, const std::string& overload) {
  static const auto* kernels = new Kernels(all_kernels());
  const auto found = kernels->find(overload.empty() ? name : name + "." + overload);
  return found == kernels->end() ? nullptr : &found->second;
}

}  // namespace forebay
