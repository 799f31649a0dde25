// The allow-list: the only operators that a client may name and a worker will look up, as NAME or NAME.OVERLOAD of namespace aten.
// What PyTorch adds in a new version is on neither side's list until somebody has looked at it.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace forebay::wire {

inline constexpr std::string_view kOperators[] = {
#include "forebay/operators.inc"
};

// Those that take sparse tensors: an operator of the list above takes dense ones alone, unless it stands here, too.
inline constexpr std::string_view kSparseOperators[] = {
#include "forebay/sparse_operators.inc"
};

inline bool takes_sparse(std::string_view name) { return std::binary_search(std::begin(kSparseOperators), std::end(kSparseOperators), name); }

inline bool is_listed(std::string_view name) { return std::binary_search(std::begin(kOperators), std::end(kOperators), name); }

}  // namespace forebay::wire
