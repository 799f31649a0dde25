// Scaled dot-product attention: which fused kernel serves it is the worker's device's to say, not that of a GPU this process lacks.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "base/leaf_mutex.h"
#include "stream/stream.h"

namespace forebay {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kFlashHeadMax = 256;
constexpr int64_t kTrainedHeadMax = 192;
constexpr size_t kChoicesMax = 4096;

bool needs_gradient(const Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

// Sizes that torch.compile leaves open.
bool has_symbols(const Tensor& tensor) { return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

bool mask_fits(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (needs_gradient(mask) || has_symbols(mask)) return false;
  const auto fits = [](int64_t size, int64_t whole) { return size == 1 || size == whole; };
  const bool inner = mask.dim() >= 2 && fits(mask.size(-2), query.size(2)) && fits(mask.size(-1), key.size(2));
  if (mask.dim() == 2) return inner;
  return mask.dim() == 4 && inner && fits(mask.size(0), query.size(0)) && fits(mask.size(1), query.size(1));
}

// What the CPU's flash kernel takes (ATen/native/transformers/sdp_utils_cpp.h, use_flash_attention_cpp).
bool cpu_flash_fits(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout, bool causal) {
  if (!at::globalContext().userEnabledFlashSDP() || dropout != 0.0) return false;
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!tensor->is_cuda() || tensor->dim() != 4 || has_symbols(*tensor) || tensor->size(2) == 0 || tensor->stride(-1) != 1) return false;
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
  if (cpu_flash_fits(query, key, value, mask, dropout, causal) && CommandStream::of(query.get_device()).worker().is_cpu) {
    const auto fused = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, additive(mask, query.scalar_type()), scale);
    return std::get<0>(fused);
  }
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, enable_gqa);
}

using Choice = at::SDPBackend;

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16; }

// What flash kernels of GPUs take, whichever GPU it is that takes cuDNN's.
bool gpu_flash_fits(const Tensor& query, const Tensor& key, const Tensor& value, bool masked) {
  const auto head = query.size(3);
  return is_half(query) && !masked && head <= kFlashHeadMax && key.size(3) == head && value.size(3) == head;
}

// Of what cuDNN's kernel takes, efficient ones take all but keys that several heads share.
Choice instead_of_cudnn(const Tensor& query, const Tensor& key, const Tensor& value, bool masked) {
  if (gpu_flash_fits(query, key, value, masked)) return Choice::flash_attention;
  return key.size(1) == query.size(1) && value.size(1) == query.size(1) ? Choice::efficient_attention : Choice::math;
}

// What the program allows of what the worker's PyTorch takes, and what autograd and the allow-list add to it: those that remain have
// kernels of parts. A gradient of large heads, or of a mask, is not to be had on every GPU; cuDNN's kernel is not on the list.
Choice served(Choice taken, const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout) {
  const auto& context = at::globalContext();
  const bool masked = mask && mask->defined();
  const bool trains = needs_gradient(query) || needs_gradient(key) || needs_gradient(value);
  if ((masked && needs_gradient(*mask)) || (trains && query.size(3) > kTrainedHeadMax)) return Choice::math;
  if (taken == Choice::cudnn_attention) taken = instead_of_cudnn(query, key, value, masked);
  if (taken == Choice::flash_attention && context.userEnabledFlashSDP()) return taken;
  if (taken == Choice::efficient_attention && context.userEnabledMemEfficientSDP() && dropout == 0) return taken;
  return Choice::math;
}

// What the worker's PyTorch would take on its device, by a call's geometry. It is asked once for each.
class Choices {
 public:
  Choice of(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout, bool causal,
            std::optional<double> scale, bool enable_gqa) {
    std::vector<int64_t> call{static_cast<int64_t>(CommandStream::of(query.get_device()).worker().kind.load()), dropout > 0, causal, enable_gqa};
    for (const Tensor* tensor : {&query, &key, &value}) note(*tensor, call);
    if (mask) note(*mask, call);
    {
      const std::lock_guard guard(mutex_);
      if (const auto found = known_.find(call); found != known_.end()) return found->second;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto taken = static_cast<Choice>(at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, enable_gqa));
    const std::lock_guard guard(mutex_);
    if (known_.size() >= kChoicesMax) known_.clear();
    return known_[call] = taken;
  }

 private:
  static void note(const Tensor& tensor, std::vector<int64_t>& call) {
    call.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    if (!tensor.defined()) return;
    call.insert(call.end(), tensor.sizes().begin(), tensor.sizes().end());
    call.insert(call.end(), tensor.strides().begin(), tensor.strides().end());
  }

  LeafMutex mutex_;
  std::map<std::vector<int64_t>, Choice> known_;
};

Choices& choices() {
  static auto* const choices = new Choices;
  return *choices;
}

// Only these are worth a question: every fused kernel takes no others.
bool may_be_fused(const Tensor& query, const Tensor& key, const Tensor& value) {
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!is_held(*tensor) || tensor->dim() != 4 || tensor->numel() == 0) return false;
    if (tensor->scalar_type() != query.scalar_type() || tensor->get_device() != query.get_device()) return false;
  }
  return is_half(query) || query.scalar_type() == at::kFloat;
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout, bool causal,
               std::optional<double> scale, bool enable_gqa) {
  const bool masked_here = !mask || !mask->defined() || is_held(*mask);
  if (!masked_here || !may_be_fused(query, key, value) || !CommandStream::of(query.get_device()).worker().is_gpu) {
    return static_cast<int64_t>(Choice::math);
  }
  const auto taken = choices().of(query, key, value, mask, dropout, causal, scale, enable_gqa);
  return static_cast<int64_t>(served(taken, query, key, value, mask, dropout));
}

}  // namespace

bool is_held(const Tensor& tensor) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet kLookingOn{Key::Python, Key::FuncTorchBatched, Key::FuncTorchGradWrapper, Key::Functionalize};
  return tensor.is_cuda() && tensor.layout() == at::kStrided && !has_symbols(tensor) && !tensor.key_set().has_any(kLookingOn);
}

void register_attention(KernelTable& library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
}

}  // namespace forebay
