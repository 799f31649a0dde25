// Operators that CUDA devices have in half precision and a CPU worker has not: they run in float there.
#include <algorithm>
#include <array>
#include <string_view>

#include "recorder/recorder.h"

namespace forebay {
namespace {

using torch::jit::Stack;

constexpr std::array<std::string_view, 2> kWidened{"aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward"};

// The half precision of the first tensor that has one; Float where none has.
at::ScalarType half_precision_in(const Stack& stack) {
  for (const auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (at::isReducedFloatingType(value.toTensor().scalar_type())) return value.toTensor().scalar_type();
  }
  return at::kFloat;
}

void convert(Stack& values, at::ScalarType from, at::ScalarType to) {
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == from) value = value.toTensor().to(to);
  }
}

}  // namespace

// Returns whether the call was recorded.
bool Recorder::record_widened(OperatorInfo& info, Stack& stack) {
  if (!info.overload.empty() || std::find(kWidened.begin(), kWidened.end(), info.name) == kWidened.end()) return false;
  const auto given = half_precision_in(stack);
  if (given == at::kFloat) return false;
  convert(stack, given, at::kFloat);
  record(info, stack);
  convert(stack, at::kFloat, given);
  return true;
}

}  // namespace forebay
