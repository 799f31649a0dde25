// What operators compute, as the beginnings of their names tell.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace forebay::worker {

constexpr std::array<std::string_view, 7> kMatrixProducts{"mm", "addmm", "bmm", "baddbmm", "_addmm", "addmv", "addbmm"};
constexpr std::array<std::string_view, 2> kConvolutions{"convolution", "_convolution"};
// Operators that take a function such as the exponential of each element; so do those whose names go on after these with an underscore.
constexpr std::array<std::string_view, 17> kFunctions{"exp", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "elu", "erf",
                                                      "log", "pow", "sin", "cos", "_softmax", "_log_softmax", "native_layer_norm", "logsumexp"};

inline bool begins_with(std::string_view name, const auto& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view one) { return name.starts_with(one); });
}

inline bool takes_function(std::string_view name) {
  return std::any_of(kFunctions.begin(), kFunctions.end(), [&](std::string_view one) { return name == one || (name.starts_with(one) && name[one.size()] == '_'); });
}

}  // namespace forebay::worker
