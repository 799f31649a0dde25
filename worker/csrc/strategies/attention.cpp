// Fused attention: each sequence of a batch by itself, and each head; and its mask where that has one for each.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// Batch and heads; the batch alone where heads of queries share one of keys and values.
size_t labelled(const StrategyDraft& draft) {
  const int64_t heads = draft.sizes("query")[1];
  return draft.sizes("key")[1] == heads && draft.sizes("value")[1] == heads ? 2 : 1;
}

void label_leading(StrategyDraft& draft, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (draft.is_tensor(name)) draft.label(name, leading_labels(labelled(draft), draft.rank(name)));
  }
}

// A mask is broadcast to batch, heads, and both sequences.
void label_mask(StrategyDraft& draft, const char* name) {
  if (!draft.is_tensor(name) || draft.rank(name) != 4) return;
  Labels labels(4, kUncut);
  for (size_t dim = 0; dim < labelled(draft); ++dim) {
    if (draft.sizes(name)[dim] == draft.sizes("query")[dim]) labels[dim] = static_cast<int>(dim);
  }
  draft.label(name, labels);
}

bool is_served(const StrategyDraft& draft) { return draft.rank("query") == 4 && draft.rank("key") == 4 && draft.rank("value") == 4; }

// Of what they make, results with the batch and the heads in front are divided: the output and the logarithms of the sums. What else there is concerns
// dropouts.
bool attention(StrategyDraft& draft) {
  if (!is_served(draft)) return false;
  draft.turn();
  label_leading(draft, {"query", "key", "value"});
  label_mask(draft, "attn_mask");
  label_mask(draft, "attn_bias");
  draft.dropout("dropout_p");
  for (size_t output = 0; output < draft.outputs().size(); ++output) {
    const auto& one = *draft.outputs()[output];
    if (one.tag != wire::OutputTag::kNew) continue;
    const size_t rank = one.geometry.sizes.size();
    if (output < 2) draft.result(output, leading_labels(labelled(draft), rank));
    else draft.result(output, Labels(rank, kUncut), Merge::kSame);
  }
  return true;
}

// Masks have no gradients here.
bool attention_backward(StrategyDraft& draft) {
  if (!is_served(draft)) return false;
  draft.turn();
  label_leading(draft, {"grad_out", "grad_out_", "query", "key", "value", "out", "logsumexp"});
  label_mask(draft, "attn_mask");
  label_mask(draft, "attn_bias");
  draft.dropout("dropout_p");
  for (size_t output = 0; output < 3; ++output) draft.result(output, leading_labels(labelled(draft), 4));
  return true;
}

}  // namespace

const StrategyRules& attention_rules() {
  static const StrategyRules rules{
      {"_scaled_dot_product_efficient_attention", attention},
      {"_scaled_dot_product_efficient_attention_backward", attention_backward},
      {"_scaled_dot_product_flash_attention", attention},
      {"_scaled_dot_product_flash_attention_backward", attention_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", attention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
  };
  return rules;
}

}  // namespace forebay::worker
