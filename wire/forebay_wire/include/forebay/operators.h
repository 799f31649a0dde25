// The allow-list: the only operators that a client may name and a worker will look up, as NAME or NAME.OVERLOAD of namespace aten, and a few of our own.
// What PyTorch adds in a new version is on neither side's list until somebody has looked at it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
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

// Operators of namespace forebay, which client and worker both define: what PyTorch has no operator for that every device could carry out.
// A layer of a recurrent network, over a whole sequence: input (T, N, I); state [h] or, of an LSTM, [h, c], each (D, N, H) for D directions;
// weights of a direction after the other, as nn.LSTM has them: (G H, I), (G H, H), and two biases (G H) or none.
// Gives [output (T, N, D H), h, c], and behind them, where it is to keep what its derivative needs, a tensor of bytes without elements: beside its
// storage the worker may hold what its kernel kept. The derivative is given all these results, and gives the gradients of input, states, weights.
struct OwnOperator {
  const char* name;
  const char* schema;
};
inline constexpr OwnOperator kOwnOperators[] = {
    {"recurrent_layer", "recurrent_layer(Tensor input, Tensor[] state, Tensor[] weights, int cell, bool bidirectional, bool keeps) -> Tensor[]"},
    {"recurrent_layer_backward",
     "recurrent_layer_backward(Tensor?[] gradients, Tensor[] results, Tensor input, Tensor[] state, Tensor[] weights, int cell, bool bidirectional) -> Tensor[]"},
};
// Its cells, numbered as cuDNN's modes, and how many gates each has.
enum RecurrentCell : int64_t { kReluCell, kTanhCell, kLstmCell, kGruCell };
inline constexpr int64_t kCellGates[] = {1, 1, 4, 3};

inline constexpr std::string_view kOwnNamespace = "forebay::";

inline bool is_own(std::string_view name) {
  if (name.substr(0, kOwnNamespace.size()) != kOwnNamespace) return false;
  name.remove_prefix(kOwnNamespace.size());
  return std::any_of(std::begin(kOwnOperators), std::end(kOwnOperators), [&](const auto& one) { return one.name == name; });
}

// After the namespace.
inline std::string_view local_name(std::string_view name) {
  const size_t colons = name.find("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

inline bool is_listed(std::string_view name) { return std::binary_search(std::begin(kOperators), std::end(kOperators), name); }

}  // namespace forebay::wire
