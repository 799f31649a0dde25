// Products of matrices and vectors: labels as in Einstein's summation.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// What is added to a product is broadcast to it.
void label_added(StrategyDraft& draft, const Labels& product, const std::vector<int64_t>& sizes) {
  const auto& own = draft.sizes("self");
  Labels labels(own.size(), kUncut);
  for (size_t from_end = 1; from_end <= std::min(own.size(), product.size()); ++from_end) {
    if (own[own.size() - from_end] == sizes[sizes.size() - from_end]) labels[own.size() - from_end] = product[product.size() - from_end];
  }
  draft.label("self", labels);
}

bool product(StrategyDraft& draft, const char* left, const char* right, const Labels& of_left, const Labels& of_right, const Labels& of_result) {
  if (!draft.is_tensor(left) || !draft.is_tensor(right)) return false;
  draft.label(left, of_left);
  draft.label(right, of_right);
  draft.label("out", of_result);
  draft.results(of_result, Merge::kSum);
  return true;
}

// A product to which something is added, times beta: once, where the product is a sum of parts. Complex factors are two words of a call.
bool added_product(StrategyDraft& draft, const char* left, const char* right, const Labels& of_left, const Labels& of_right, const Labels& of_result) {
  if (!draft.is_tensor("self") || !product(draft, left, right, of_left, of_right, of_result)) return false;
  const bool has_factor = draft.has("beta") && draft.argument("beta").tag != wire::Tag::kScalarComplex;
  if (has_factor) draft.added_once("beta");
  draft.results(of_result, has_factor ? Merge::kSum : Merge::kNone);
  std::vector<int64_t> sizes;
  for (const int label : of_result) {
    const auto left_place = std::find(of_left.begin(), of_left.end(), label);
    const auto right_place = std::find(of_right.begin(), of_right.end(), label);
    sizes.push_back(left_place != of_left.end() ? draft.sizes(left)[static_cast<size_t>(left_place - of_left.begin())]
                                                : draft.sizes(right)[static_cast<size_t>(right_place - of_right.begin())]);
  }
  label_added(draft, of_result, sizes);
  return true;
}

bool mm(StrategyDraft& draft) { return product(draft, "self", "mat2", {0, 1}, {1, 2}, {0, 2}); }
bool bmm(StrategyDraft& draft) { return product(draft, "self", "mat2", {0, 1, 2}, {0, 2, 3}, {0, 1, 3}); }
bool dot(StrategyDraft& draft) { return product(draft, "self", draft.name() == "dot" ? "tensor" : "other", {0}, {0}, {}); }
bool addmm(StrategyDraft& draft) { return added_product(draft, "mat1", "mat2", {0, 1}, {1, 2}, {0, 2}); }
// What is made of a sum by a function cannot be made of its parts.
bool addmm_activation(StrategyDraft& draft) {
  if (!addmm(draft)) return false;
  draft.results({0, 2});
  return true;
}
bool addmv(StrategyDraft& draft) { return added_product(draft, "mat", "vec", {0, 1}, {1}, {0}); }
bool addr(StrategyDraft& draft) { return added_product(draft, "vec1", "vec2", {0}, {1}, {0, 1}); }
bool baddbmm(StrategyDraft& draft) { return added_product(draft, "batch1", "batch2", {0, 1, 2}, {0, 2, 3}, {0, 1, 3}); }
bool addbmm(StrategyDraft& draft) { return added_product(draft, "batch1", "batch2", {kUncut, 1, kUncut}, {kUncut, kUncut, 3}, {1, 3}); }

// More rows than these, of either side, have PyTorch compute Euclidean distances by a product of matrices, which rounds otherwise.
constexpr int64_t kDirectRows = 25;

// Two batches of matrices of vectors, and the distances between the rows of each two.
struct DistanceLabels {
  Labels first, second, distances;
};

// None where the batches differ.
std::optional<DistanceLabels> distance_labels(const StrategyDraft& draft) {
  const size_t rank = draft.rank("x1");
  if (rank < 2 || draft.rank("x2") != rank) return std::nullopt;
  for (size_t dim = 0; dim + 2 < rank; ++dim) {
    if (draft.sizes("x1")[dim] != draft.sizes("x2")[dim]) return std::nullopt;
  }
  DistanceLabels labels{leading_labels(rank - 1, rank), leading_labels(rank - 2, rank), leading_labels(rank - 1, rank)};
  labels.second[rank - 2] = labels.distances[rank - 1] = static_cast<int>(rank);
  return labels;
}

// Rows are divided where the parts' distances are computed as the whole's are.
bool cdist(StrategyDraft& draft) {
  auto labels = distance_labels(draft);
  if (!labels) return false;
  const size_t rank = draft.rank("x1");
  const int64_t rows = draft.sizes("x1")[rank - 2], others = draft.sizes("x2")[rank - 2];
  if (rows > kDirectRows && others <= kDirectRows) labels->first[rank - 2] = labels->distances[rank - 2] = kUncut;
  if (others > kDirectRows && rows <= kDirectRows) labels->second[rank - 2] = labels->distances[rank - 1] = kUncut;
  draft.label("x1", labels->first);
  draft.label("x2", labels->second);
  draft.results(labels->distances);
  return true;
}

// The gradient of the first vectors is a sum over the second ones.
bool cdist_backward(StrategyDraft& draft) {
  const auto labels = distance_labels(draft);
  if (!labels || draft.rank("grad") != draft.rank("x1") || draft.rank("cdist") != draft.rank("x1")) return false;
  draft.label("x1", labels->first);
  draft.label("x2", labels->second);
  draft.label("grad", labels->distances);
  draft.label("cdist", labels->distances);
  draft.results(labels->first, Merge::kSum);
  return true;
}

}  // namespace

const StrategyRules& product_rules() {
  static const StrategyRules rules{
      {"_addmm_activation", addmm_activation},
      {"_cdist_backward", cdist_backward},
      {"_cdist_forward", cdist},
      {"_int_mm", mm},
      {"addbmm", addbmm},
      {"addmm", addmm},
      {"addmv", addmv},
      {"addr", addr},
      {"baddbmm", baddbmm},
      {"bmm", bmm},
      {"dot", dot},
      {"mm", mm},
      {"vdot", dot},
  };
  return rules;
}

}  // namespace forebay::worker
