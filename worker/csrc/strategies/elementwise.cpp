// Operators that work element by element. PyTorch tags most of them itself (at::Tag::pointwise); these are without the tag.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// The sizes that all tensors are broadcast to; none where they cannot be.
std::optional<std::vector<int64_t>> broadcast_sizes(const std::vector<const wire::Geometry*>& tensors) {
  std::vector<int64_t> whole;
  for (const auto* geometry : tensors) {
    const auto& sizes = geometry->sizes;
    if (sizes.size() > whole.size()) whole.insert(whole.begin(), sizes.size() - whole.size(), 1);
    for (size_t from_end = 1; from_end <= sizes.size(); ++from_end) {
      int64_t& size = whole[whole.size() - from_end];
      const int64_t own = sizes[sizes.size() - from_end];
      if (size == 1) size = own;
      if (own != 1 && own != size) return std::nullopt;
    }
  }
  return whole;
}

Labels broadcast_labels(const std::vector<int64_t>& sizes, const std::vector<int64_t>& whole) {
  Labels labels(sizes.size(), kUncut);
  const size_t behind = whole.size() - sizes.size();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == whole[behind + dim]) labels[dim] = static_cast<int>(behind + dim);
  }
  return labels;
}

// The boundaries are given to each part whole. They may be one list for all that is looked up, and nothing else.
bool looks_up(StrategyDraft& draft, std::string_view boundaries) {
  if (!draft.is_tensor("self") || !draft.is_tensor(boundaries) || draft.rank(boundaries) != 1 || draft.is_tensor("out")) return false;
  const Labels labels = leading_labels(draft.rank("self"), draft.rank("self"));
  draft.label("self", labels);
  draft.results(labels);
  return true;
}

bool bucketize(StrategyDraft& draft) { return looks_up(draft, "boundaries"); }

bool searchsorted(StrategyDraft& draft) { return looks_up(draft, "sorted_sequence"); }

}  // namespace

bool elementwise(StrategyDraft& draft) {
  const auto whole = broadcast_sizes(draft.tensors());
  if (!whole || draft.outputs().empty()) return false;
  for (size_t tensor = 0; tensor < draft.tensors().size(); ++tensor) draft.label(tensor, broadcast_labels(draft.tensors()[tensor]->sizes, *whole));
  for (size_t output = 0; output < draft.outputs().size(); ++output) {
    const auto& one = *draft.outputs()[output];
    if (one.tag == wire::OutputTag::kSame || one.tag == wire::OutputTag::kNone) continue;
    if (one.tag != wire::OutputTag::kNew || one.geometry.sizes != *whole) return false;
    draft.result(output, leading_labels(whole->size(), whole->size()));
  }
  return true;
}

const StrategyRules& elementwise_rules() {
  static const StrategyRules rules{
      {"__irshift__", elementwise},
      {"_conj_copy", elementwise},
      {"_neg_view_copy", elementwise},
      {"_prelu_kernel", elementwise},
      {"_prelu_kernel_backward", elementwise},
      {"_standard_gamma_grad", elementwise},
      {"alias_copy", elementwise},
      {"bucketize", bucketize},
      {"complex", elementwise},
      {"copy", elementwise},
      {"copysign", elementwise},
      {"detach_copy", elementwise},
      {"elu", elementwise},
      {"elu_backward", elementwise},
      {"eq", elementwise},
      {"fake_quantize_per_tensor_affine_cachemask", elementwise},
      {"fill", elementwise},
      {"floor_divide", elementwise},
      {"gcd", elementwise},
      {"ge", elementwise},
      {"gelu", elementwise},
      {"gelu_backward", elementwise},
      {"gt", elementwise},
      {"hardshrink", elementwise},
      {"hardshrink_backward", elementwise},
      {"hardsigmoid", elementwise},
      {"hardsigmoid_backward", elementwise},
      {"hardswish", elementwise},
      {"hardswish_backward", elementwise},
      {"hardtanh", elementwise},
      {"hardtanh_backward", elementwise},
      {"heaviside", elementwise},
      {"lcm", elementwise},
      {"le", elementwise},
      {"leaky_relu", elementwise},
      {"leaky_relu_backward", elementwise},
      {"log_sigmoid_backward", elementwise},
      {"log_sigmoid_forward", elementwise},
      {"lt", elementwise},
      {"masked_fill", elementwise},
      {"mish", elementwise},
      {"mish_backward", elementwise},
      {"ne", elementwise},
      {"polar", elementwise},
      {"rsub", elementwise},
      {"searchsorted", searchsorted},
      {"softplus", elementwise},
      {"softplus_backward", elementwise},
      {"softshrink", elementwise},
      {"softshrink_backward", elementwise},
      {"threshold", elementwise},
      {"threshold_backward", elementwise},
      {"where", elementwise},
      {"zero", elementwise},
  };
  return rules;
}

}  // namespace forebay::worker
