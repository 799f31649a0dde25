// Losses. Sums of rows are summed; means of all elements are means of the parts'. What divides by a count of its own is composed (composition.h).
#include "strategies/strategy.h"

#include <ATen/core/Reduction.h>

namespace forebay::worker {

namespace {

bool is_reduced(const StrategyDraft& draft) { return draft.integer("reduction") != at::Reduction::None; }

// Of each element. All tensors have its sizes.
bool elementwise_loss(StrategyDraft& draft) {
  if (!is_reduced(draft)) return elementwise(draft);
  const size_t rank = draft.rank("self");
  for (const char* name : {"target", "weight"}) {
    if (draft.is_tensor(name) && draft.sizes(name) != draft.sizes("self")) return false;
  }
  for (const char* name : {"self", "target", "weight"}) draft.label(name, leading_labels(rank, rank));
  draft.results({}, draft.integer("reduction") == at::Reduction::Mean ? Merge::kMean : Merge::kSum);
  return true;
}

// That of a mean divides by the number of elements, of which each part has fewer: composed.
bool elementwise_loss_backward(StrategyDraft& draft) { return draft.integer("reduction") != at::Reduction::Mean && elementwise(draft); }

// Classes are the second dimension, or the only one.
bool nll_loss(StrategyDraft& draft, bool is_backward) {
  const size_t rank = draft.rank("self");
  if (rank < 2 || draft.rank("target") + 1 != rank) return false;
  const Labels scores = all_but({1}, rank);
  Labels rows = scores;
  rows.erase(rows.begin() + 1);
  draft.label("self", scores);
  draft.label("target", rows);
  for (const char* written : {"output", "total_weight"}) {
    if (!is_backward && draft.is_tensor(written)) return false;
  }
  if (is_backward) {
    if (!is_reduced(draft)) draft.label("grad_output", rows);
    draft.label("grad_input", scores);
    draft.results(scores);
    return true;
  }
  if (draft.integer("reduction") == at::Reduction::Mean) return false;
  draft.result(0, is_reduced(draft) ? Labels() : rows, Merge::kSum);
  draft.result(1, {}, Merge::kSum);
  return true;
}

bool nll_loss_forward(StrategyDraft& draft) { return nll_loss(draft, /*is_backward=*/false); }

// That of a mean divides by the whole's total weight, which it is given.
bool nll_loss_backward(StrategyDraft& draft) { return nll_loss(draft, /*is_backward=*/true); }

}  // namespace

const StrategyRules& loss_rules() {
  static const StrategyRules rules{
      {"binary_cross_entropy", elementwise_loss},
      {"binary_cross_entropy_backward", elementwise_loss_backward},
      {"huber_loss", elementwise_loss},
      {"huber_loss_backward", elementwise_loss_backward},
      {"mse_loss", elementwise_loss},
      {"mse_loss_backward", elementwise_loss_backward},
      {"nll_loss2d_backward", nll_loss_backward},
      {"nll_loss2d_forward", nll_loss_forward},
      {"nll_loss_backward", nll_loss_backward},
      {"nll_loss_forward", nll_loss_forward},
      {"smooth_l1_loss", elementwise_loss},
      {"smooth_l1_loss_backward", elementwise_loss_backward},
  };
  return rules;
}

}  // namespace forebay::worker
