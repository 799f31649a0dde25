// Operators that mix the elements along some dimensions, and keep the others apart.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// All tensors and results have as many dimensions, and mix the elements of these alone. Along them sizes may differ.
bool apart_from(StrategyDraft& draft, const std::vector<size_t>& mixed) {
  if (draft.tensors().empty()) return false;
  const size_t rank = draft.tensors().front()->sizes.size();
  const Labels labels = all_but(mixed, rank);
  for (size_t tensor = 0; tensor < draft.tensors().size(); ++tensor) {
    if (draft.tensors()[tensor]->sizes.size() != rank) return false;
    draft.label(tensor, labels);
  }
  draft.results(labels);
  return true;
}

std::vector<size_t> named(const StrategyDraft& draft, std::string_view name) {
  std::vector<size_t> dims;
  const size_t rank = draft.tensors().empty() ? 0 : draft.tensors().front()->sizes.size();
  for (const int64_t dim : draft.integers(name)) dims.push_back(StrategyDraft::dimension(dim, rank));
  return dims;
}

bool along_dim(StrategyDraft& draft) { return draft.has("dim") && apart_from(draft, named(draft, "dim")); }

bool along_dims(StrategyDraft& draft) { return draft.has("dims") && !draft.integers("dims").empty() && apart_from(draft, named(draft, "dims")); }

// Flipping no dimension is a copy.
bool flip(StrategyDraft& draft) { return apart_from(draft, named(draft, "dims")); }

// Each slice along the dimension is scaled by its own norm.
bool renorm(StrategyDraft& draft) {
  if (!draft.is_tensor("self") || !draft.has("dim")) return false;
  const size_t rank = draft.rank("self"), kept = StrategyDraft::dimension(draft.integer("dim"), rank);
  std::vector<size_t> mixed;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (dim != kept) mixed.push_back(dim);
  }
  return apart_from(draft, mixed);
}

// Side by side. Tensors of one dimension without elements are passed over, whatever the others' dimensions are.
bool cat(StrategyDraft& draft) {
  size_t rank = 1;
  const auto is_passed_over = [](const wire::Geometry& geometry) { return geometry.sizes == std::vector<int64_t>{0}; };
  for (const auto* tensor : draft.tensors()) rank = is_passed_over(*tensor) ? rank : tensor->sizes.size();
  const Labels labels = all_but({StrategyDraft::dimension(draft.integer("dim"), rank)}, rank);
  for (size_t tensor = 0; tensor < draft.tensors().size(); ++tensor) {
    if (!is_passed_over(*draft.tensors()[tensor])) draft.label(tensor, labels);
  }
  draft.results(labels);
  return true;
}

bool matrices(StrategyDraft& draft) {
  const size_t rank = draft.tensors().empty() ? 0 : draft.tensors().front()->sizes.size();
  return rank > 2 && apart_from(draft, {rank - 2, rank - 1});
}

// One dimension fewer: an element along it is taken out, or put in.
Labels without(size_t dim, size_t rank) {
  Labels labels = all_but({dim}, rank);
  if (dim < rank) labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(dim));
  return labels;
}

void label_sizes(StrategyDraft& draft, std::string_view name, const Labels& labels) {
  for (size_t position = 0; position < labels.size(); ++position) {
    if (labels[position] != kUncut) draft.size(name, position, labels[position]);
  }
}

bool select_backward(StrategyDraft& draft) {
  const size_t rank = draft.integers("input_sizes").size(), dim = StrategyDraft::dimension(draft.integer("dim"), rank);
  draft.label("grad_output", without(dim, rank));
  draft.label("out", all_but({dim}, rank));
  draft.results(all_but({dim}, rank));
  label_sizes(draft, "input_sizes", all_but({dim}, rank));
  return draft.rank("grad_output") + 1 == rank;
}

// What came of windows along a dimension goes back to it; the windows' elements are the last dimension.
bool unfold_backward(StrategyDraft& draft) {
  const size_t rank = draft.integers("input_sizes").size(), dim = StrategyDraft::dimension(draft.integer("dim"), rank);
  const Labels labels = all_but({dim}, rank);
  Labels windows = labels;
  windows.push_back(kUncut);
  draft.label("grad_in", windows);
  draft.results(labels);
  label_sizes(draft, "input_sizes", labels);
  return draft.rank("grad_in") == rank + 1;
}

bool select_scatter(StrategyDraft& draft) {
  const size_t rank = draft.rank("self"), dim = StrategyDraft::dimension(draft.integer("dim"), rank);
  draft.label("self", all_but({dim}, rank));
  draft.label("src", without(dim, rank));
  draft.label("out", all_but({dim}, rank));
  draft.results(all_but({dim}, rank));
  return draft.rank("src") + 1 == rank;
}

}  // namespace

const StrategyRules& dimension_rules() {
  static const StrategyRules rules{
      {"_cummax_helper", along_dim},
      {"_cummin_helper", along_dim},
      {"_fft_c2c", along_dim},
      {"_fft_c2r", along_dim},
      {"_fft_r2c", along_dim},
      {"_log_softmax", along_dim},
      {"_log_softmax_backward_data", along_dim},
      {"_logcumsumexp", along_dim},
      {"_softmax", along_dim},
      {"_softmax_backward_data", along_dim},
      {"cat", cat},
      {"cumprod", along_dim},
      {"cumsum", along_dim},
      {"flip", flip},
      {"glu", along_dim},
      {"glu_backward", along_dim},
      {"glu_backward_jvp", along_dim},
      {"glu_jvp", along_dim},
      {"linalg_cross", along_dim},
      {"renorm", renorm},
      {"roll", along_dims},
      {"select_backward", select_backward},
      {"select_scatter", select_scatter},
      {"slice_scatter", along_dim},
      {"sort", along_dim},
      {"topk", along_dim},
      {"tril", matrices},
      {"triu", matrices},
      {"unfold_backward", unfold_backward},
  };
  return rules;
}

}  // namespace forebay::worker
