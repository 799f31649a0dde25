// Scaled dot-product attention: which fused kernel serves it is the worker's device's to say, not that of a GPU this process lacks.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <limits>

#include "kernel_table.h"
#include "registration.h"
#include "stream.h"

namespace forebay {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool needs_gradient(const Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

bool mask_fits(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (needs_gradient(mask)) return false;
  const auto fits = [](int64_t size, int64_t whole) { return size == 1 || size == whole; };
  const bool inner = mask.dim() >= 2 && fits(mask.size(-2), query.size(2)) && fits(mask.size(-1), key.size(2));
  if (mask.dim() == 2) return inner;
  return mask.dim() == 4 && inner && fits(mask.size(0), query.size(0)) && fits(mask.size(1), query.size(1));
}

// What the CPU's flash kernel takes (ATen/native/transformers/sdp_utils_cpp.h, use_flash_attention_cpp).
bool cpu_flash_fits(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout, bool causal) {
  if (!at::globalContext().userEnabledFlashSDP() || dropout != 0.0) return false;
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!tensor->is_cuda() || tensor->dim() != 4 || tensor->size(2) == 0 || tensor->stride(-1) != 1) return false;
    if (tensor->scalar_type() != query.scalar_type() || tensor->size(0) != query.size(0) || tensor->size(1) != query.size(1)) return false;
    if (tensor->size(3) != query.size(3)) return false;
  }
  if (!query.is_floating_point() || query.numel() == 0) return false;
  return !mask || !mask->defined() || (!causal && mask_fits(*mask, query, key));
}

OptionalTensor additive(const OptionalTensor& mask, at::ScalarType dtype) {
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
  return at::zeros_like(*mask, dtype).masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout, bool causal,
                 std::optional<double> scale, bool enable_gqa) {
  if (cpu_flash_fits(query, key, value, mask, dropout, causal) && CommandStream::of(query.get_device()).worker_is_cpu()) {
    const auto fused = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, additive(mask, query.scalar_type()), scale);
    return std::get<0>(fused);
  }
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, enable_gqa);
}

// The kernel that a build with CUDA would choose by the properties of its GPU.
template <typename... Arguments>
int64_t choose_math(Arguments...) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

void register_attention(KernelTable& library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_math);
}

}  // namespace forebay
