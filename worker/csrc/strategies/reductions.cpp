// Operators that reduce dimensions. Sums, means, largest and smallest elements of parts make those of the whole; others are divided along the
// dimensions that stay.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// Labels of a result of which dimensions were reduced, each left with one element where `keeps`.
Labels reduced(const std::vector<size_t>& dims, size_t rank, bool keeps) {
  Labels labels;
  for (size_t dim = 0; dim < rank; ++dim) {
    const bool is_reduced = std::find(dims.begin(), dims.end(), dim) != dims.end();
    if (!is_reduced) labels.push_back(static_cast<int>(dim));
    else if (keeps) labels.push_back(kUncut);
  }
  return labels;
}

// Which dimensions a call reduces: those that it names, or all. An empty list has `all` and `any` reduce none, and the others all.
std::vector<size_t> dims_of(const StrategyDraft& draft, size_t rank) {
  std::vector<size_t> dims;
  const bool is_truth = draft.name() == "all" || draft.name() == "any";
  if (is_truth && draft.has("dim") && draft.integers("dim").empty()) return dims;
  for (const int64_t dim : draft.integers("dim")) dims.push_back(StrategyDraft::dimension(dim, rank));
  for (size_t dim = 0; dims.size() < rank && draft.integers("dim").empty(); ++dim) dims.push_back(dim);
  return dims;
}

bool reduces(StrategyDraft& draft, std::initializer_list<Merge> merges) {
  if (!draft.is_tensor("self")) return false;
  const size_t rank = draft.rank("self");
  const Labels result = reduced(dims_of(draft, rank), rank, draft.has("keepdim") && draft.flag("keepdim"));
  draft.label("self", leading_labels(rank, rank));
  for (const char* written : {"out", "values", "indices", "max", "max_values", "min", "min_indices"}) draft.label(written, result);
  for (size_t output = 0; output < draft.outputs().size(); ++output) draft.result(output, result, *(merges.begin() + std::min(output, merges.size() - 1)));
  return true;
}

bool sum(StrategyDraft& draft) { return reduces(draft, {Merge::kSum}); }
bool mean(StrategyDraft& draft) { return reduces(draft, {Merge::kMean}); }
bool largest(StrategyDraft& draft) { return reduces(draft, {Merge::kMax}); }
bool smallest(StrategyDraft& draft) { return reduces(draft, {Merge::kMin}); }
bool both(StrategyDraft& draft) { return reduces(draft, {Merge::kMin, Merge::kMax}); }
bool along(StrategyDraft& draft) { return reduces(draft, {Merge::kNone}); }

// Of all elements, or with their places along a dimension.
bool max(StrategyDraft& draft) { return draft.has("dim") ? along(draft) : largest(draft); }
bool min(StrategyDraft& draft) { return draft.has("dim") ? along(draft) : smallest(draft); }

}  // namespace

const StrategyRules& reduction_rules() {
  static const StrategyRules rules{
      {"_aminmax", both},
      {"all", smallest},
      {"amax", largest},
      {"amin", smallest},
      {"aminmax", both},
      {"any", largest},
      {"argmax", along},
      {"argmin", along},
      {"count_nonzero", sum},
      {"kthvalue", along},
      {"linalg_vector_norm", along},
      {"logsumexp", along},
      {"max", max},
      {"mean", mean},
      {"median", along},
      {"min", min},
      {"mode", along},
      {"nanmedian", along},
      {"nansum", sum},
      {"norm", along},
      {"prod", along},
      {"std", along},
      {"std_mean", along},
      {"sum", sum},
      {"var", along},
      {"var_mean", along},
  };
  return rules;
}

}  // namespace forebay::worker
