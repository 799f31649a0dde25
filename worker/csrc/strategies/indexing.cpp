// Operators that take, or put, elements where a tensor of indices says. Indices lead into whole dimensions: one that they lead into is not divided.
#include "strategies/strategy.h"

#include <algorithm>

namespace forebay::worker {

namespace {

size_t named_dim(const StrategyDraft& draft) { return StrategyDraft::dimension(draft.integer("dim"), draft.rank("self")); }

// An index beside each element, in all other dimensions. Where they have fewer of them than what they lead into, sizes differ, and nothing is divided there.
bool gather(StrategyDraft& draft) {
  const size_t rank = draft.rank("self"), dim = named_dim(draft);
  if (draft.rank("index") != rank || rank == 0) return false;
  Labels taken = all_but({}, rank);
  taken[dim] = static_cast<int>(rank);  // the indices, and what they take, may be divided along the dimension that they lead into
  draft.label("self", all_but({dim}, rank));
  draft.label("index", taken);
  draft.label("out", taken);
  draft.results(taken);
  return true;
}

bool scatter(StrategyDraft& draft) {
  const size_t rank = draft.rank("self"), dim = named_dim(draft);
  if (draft.rank("index") != rank || rank == 0 || (draft.is_tensor("src") && draft.rank("src") != rank)) return false;
  const Labels labels = all_but({dim}, rank);
  for (const char* name : {"self", "index", "src", "out"}) draft.label(name, labels);
  draft.results(labels);
  return true;
}

// A list of indices for all that lies beside it.
bool index_select(StrategyDraft& draft) {
  const size_t rank = draft.rank("self"), dim = named_dim(draft);
  if (rank == 0) return false;
  Labels taken = all_but({}, rank);
  taken[dim] = draft.rank("index") == 1 ? static_cast<int>(rank) : kUncut;
  draft.label("self", all_but({dim}, rank));
  draft.label("index", Labels(draft.rank("index"), static_cast<int>(rank)));
  draft.label("out", taken);
  draft.results(taken);
  return true;
}

// Puts at a list of indices; the list is given to each part whole.
bool index_put_along(StrategyDraft& draft) {
  const size_t rank = draft.rank("self"), dim = named_dim(draft);
  if (rank == 0 || (draft.is_tensor("source") && draft.rank("source") != rank)) return false;
  const Labels labels = all_but({dim}, rank);
  for (const char* name : {"self", "source", "out"}) draft.label(name, labels);
  draft.results(labels);
  return true;
}

// Tensors of indices for some dimensions: they are broadcast, and what they take has their dimensions where those were that they lead into, if these lie
// side by side, and else in front.
bool index(StrategyDraft& draft) {
  const auto& items = draft.argument("indices").items;
  const size_t rank = draft.rank("self");
  std::vector<size_t> indexed, tensors = draft.numbers("indices");
  size_t broadcast = 0;
  for (size_t dim = 0; dim < items.size(); ++dim) {
    if (items[dim].tag != wire::Tag::kTensor) continue;
    if (!c10::isIntegralType(static_cast<c10::ScalarType>(items[dim].geometry.dtype), /*includeBool=*/false)) return false;
    indexed.push_back(dim);
    broadcast = std::max(broadcast, items[dim].geometry.sizes.size());
  }
  if (indexed.empty() || items.size() > rank) return false;
  std::vector<int64_t> sizes(broadcast, 1);
  for (const size_t dim : indexed) {
    const auto& own = items[dim].geometry.sizes;
    for (size_t from_end = 1; from_end <= own.size(); ++from_end) sizes[broadcast - from_end] = std::max(sizes[broadcast - from_end], own[own.size() - from_end]);
  }
  for (size_t item = 0; item < indexed.size(); ++item) {
    const auto& own = items[indexed[item]].geometry.sizes;
    Labels labels(own.size(), kUncut);
    for (size_t from_end = 1; from_end <= own.size(); ++from_end) {
      if (own[own.size() - from_end] == sizes[broadcast - from_end]) labels[own.size() - from_end] = static_cast<int>(rank + broadcast - from_end);
    }
    draft.label(tensors[item], labels);
  }
  const Labels self = all_but(indexed, rank);
  draft.label("self", self);
  const bool side_by_side = indexed.back() - indexed.front() + 1 == indexed.size();
  const size_t front = side_by_side ? indexed.front() : 0;
  Labels taken;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (self[dim] != kUncut) taken.push_back(self[dim]);
  }
  Labels of_indices;
  for (size_t dim = 0; dim < broadcast; ++dim) of_indices.push_back(static_cast<int>(rank + dim));
  taken.insert(taken.begin() + static_cast<std::ptrdiff_t>(front), of_indices.begin(), of_indices.end());
  draft.label("out", taken);
  draft.results(taken);
  return true;
}

// The gradient of a table is a sum over all that was looked up, unless each row is divided by how often that was done.
bool embedding_dense_backward(StrategyDraft& draft) {
  const size_t rank = draft.rank("grad_output");
  if (rank != draft.rank("indices") + 1) return false;
  const bool by_frequency = draft.flag("scale_grad_by_freq");
  draft.label("grad_output", by_frequency ? all_but({}, rank) : leading_labels(rank, rank));
  draft.label("indices", leading_labels(rank - 1, rank - 1));
  draft.results({kUncut, static_cast<int>(rank) - 1}, by_frequency ? Merge::kNone : Merge::kSum);
  return true;
}

}  // namespace

const StrategyRules& indexing_rules() {
  static const StrategyRules rules{
      {"embedding_dense_backward", embedding_dense_backward},
      {"gather", gather},
      {"index", index},
      {"index_add", index_put_along},
      {"index_copy", index_put_along},
      {"index_fill", index_put_along},
      {"index_reduce", index_put_along},
      {"index_select", index_select},
      {"scatter", scatter},
      {"scatter_add", scatter},
      {"scatter_reduce", scatter},
  };
  return rules;
}

}  // namespace forebay::worker
