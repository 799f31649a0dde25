// Normalisations by statistics of each row, or by given ones. Those by statistics of a batch are composed (composition.h).
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// How many dimensions lie before those that are normalised; none where all are.
size_t rows_before(const StrategyDraft& draft) { return draft.rank("input") - std::min(draft.rank("input"), draft.integers("normalized_shape").size()); }

bool layer_norm(StrategyDraft& draft) {
  const size_t rank = draft.rank("input"), rows = rows_before(draft);
  draft.label("input", leading_labels(rows, rank));
  draft.results(leading_labels(rows, rank));
  return !draft.is_tensor("out0");
}

// The gradients of weight and bias are sums over the rows.
bool layer_norm_backward(StrategyDraft& draft) {
  const size_t rank = draft.rank("input"), rows = rows_before(draft);
  for (const char* name : {"grad_out", "input", "mean", "rstd"}) draft.label(name, leading_labels(rows, rank));
  if (draft.is_tensor("mean") && (draft.rank("mean") != rank || draft.rank("rstd") != rank)) return false;
  draft.result(0, leading_labels(rows, rank));
  for (const size_t output : {1, 2}) draft.result(output, Labels(rank - rows, kUncut), Merge::kSum);
  return !draft.is_tensor("out0");
}

bool group_norm(StrategyDraft& draft) {
  const size_t rank = draft.rank("input");
  if (rank < 2 || draft.sizes("input")[0] != draft.integer("N")) return false;
  draft.label("input", leading_labels(1, rank));
  draft.size("N", 0, 0);
  draft.result(0, leading_labels(1, rank));
  for (const size_t output : {1, 2}) draft.result(output, leading_labels(1, 2));
  return !draft.is_tensor("out0");
}

bool group_norm_backward(StrategyDraft& draft) {
  if (!group_norm(draft) || draft.rank("grad_out") != draft.rank("input")) return false;
  draft.label("grad_out", leading_labels(1, draft.rank("input")));
  for (const char* name : {"mean", "rstd"}) draft.label(name, leading_labels(1, draft.rank(name)));
  for (const size_t output : {1, 2}) draft.result(output, {kUncut}, Merge::kSum);
  return true;
}

bool has_statistics(const StrategyDraft& draft) { return draft.is_tensor("running_mean") && draft.is_tensor("running_var"); }

// By the running statistics, which it leaves. What it saves is empty.
bool batch_norm(StrategyDraft& draft) {
  if (draft.flag("training") || !has_statistics(draft) || draft.is_tensor("out")) return false;
  const size_t rank = draft.rank("input");
  draft.label("input", leading_labels(1, rank));
  draft.result(0, leading_labels(1, rank));
  for (const size_t output : {1, 2}) draft.result(output, {kUncut}, Merge::kSame);
  return true;
}

bool batch_norm_backward(StrategyDraft& draft) {
  const size_t rank = draft.rank("input");
  if (draft.flag("train") || !has_statistics(draft) || draft.rank("grad_out") != rank) return false;
  draft.label("input", leading_labels(1, rank));
  draft.label("grad_out", leading_labels(1, rank));
  draft.result(0, leading_labels(1, rank));
  for (const size_t output : {1, 2}) draft.result(output, {kUncut}, Merge::kSum);
  return !draft.is_tensor("out0");
}

}  // namespace

const StrategyRules& normalization_rules() {
  static const StrategyRules rules{
      {"_native_batch_norm_legit", batch_norm},
      {"native_batch_norm", batch_norm},
      {"native_batch_norm_backward", batch_norm_backward},
      {"native_group_norm", group_norm},
      {"native_group_norm_backward", group_norm_backward},
      {"native_layer_norm", layer_norm},
      {"native_layer_norm_backward", layer_norm_backward},
  };
  return rules;
}

}  // namespace forebay::worker
