#include "call/bounds.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include <ATen/ops/abs.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/any.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

namespace forebay::worker {

namespace {

// Beyond so many numbers PyTorch's own reductions, which use wide registers and threads, win what their three dispatches cost.
constexpr int64_t kNumbersHere = 4096;
constexpr int64_t kSumMax = int64_t{1} << 61;  // far above what a storage holds; a sum of lengths stays there instead of wrapping

struct Extent {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = std::numeric_limits<int64_t>::min();
  int64_t last = 0;  // kLengths: the largest sum of a row; kBags: how many lie below; else as most
  bool goes_down = false;  // kAscending
};

// Absolute values wrap: the least number of all stays negative, and is refused as such.
int64_t distance(int64_t number) { return number < 0 ? static_cast<int64_t>(-static_cast<uint64_t>(number)) : number; }

template <typename Number>
Extent extent_here(const at::Tensor& numbers, const Bound& bound) {
  const at::Tensor dense = numbers.contiguous();
  const Number* const begin = dense.const_data_ptr<Number>();
  const int64_t count = dense.numel(), row = bound.kind == Bound::Kind::kLengths ? dense.size(-1) : count;
  Extent extent;
  int64_t sum = 0;
  for (int64_t index = 0; index < count; ++index) {
    const int64_t number = bound.kind == Bound::Kind::kBlocks ? distance(begin[index]) : begin[index];
    extent.goes_down = extent.goes_down || (index > 0 && begin[index] < begin[index - 1]);
    if (bound.kind == Bound::Kind::kClasses && number == bound.other) continue;
    extent.least = std::min(extent.least, number);
    extent.most = std::max(extent.most, number);
    if (bound.kind == Bound::Kind::kBags) extent.last += number < bound.other;
    if (bound.kind != Bound::Kind::kLengths) continue;
    sum = std::min(kSumMax, (index % row == 0 ? 0 : sum) + std::clamp(number, int64_t{0}, kSumMax));
    extent.last = std::max(extent.last, sum);
  }
  if (bound.kind != Bound::Kind::kLengths && bound.kind != Bound::Kind::kBags) extent.last = extent.most;
  return extent;
}

// What the kernel looks at of them, where all numbers are looked at at once.
at::Tensor followed(const at::Tensor& numbers, const Bound& bound) {
  if (bound.kind == Bound::Kind::kBlocks) return numbers.abs();
  return bound.kind == Bound::Kind::kClasses ? numbers.masked_fill(numbers.eq(bound.other), 0) : numbers;
}

Extent extent_by_pytorch(const at::Tensor& numbers, const Bound& bound) {
  const auto [least, most] = at::aminmax(followed(numbers, bound));
  Extent extent{least.item().toLong(), most.item().toLong(), 0};
  extent.last = extent.most;
  if (bound.kind == Bound::Kind::kLengths) {
    const bool wraps = extent.most > kSumMax / numbers.size(-1);
    extent.last = wraps ? kSumMax : numbers.sum(-1).max().item().toLong();
  }
  if (bound.kind == Bound::Kind::kAscending) extent.goes_down = numbers.diff().lt(0).any().item().toBool();
  if (bound.kind == Bound::Kind::kBags) extent.last = numbers.lt(bound.other).sum().item().toLong();
  return extent;
}

Extent extent_of(const at::Tensor& numbers, const Bound& bound) {
  if (numbers.is_cpu() && numbers.numel() <= kNumbersHere) {
    if (numbers.scalar_type() == at::kLong) return extent_here<int64_t>(numbers, bound);
    if (numbers.scalar_type() == at::kInt) return extent_here<int32_t>(numbers, bound);
  }
  return extent_by_pytorch(numbers, bound);
}

// Whether numbers below 0 come in pairs: each two of a row stand for a block of two.
bool are_paired(const at::Tensor& numbers) {
  const at::Tensor below = numbers.lt(0).cpu().contiguous();
  const bool* const begin = below.const_data_ptr<bool>();
  const int64_t row = below.size(-1);
  for (int64_t index = 0; index < below.numel(); ++index) {
    if (!begin[index]) continue;
    if (index % row == row - 1 || !begin[++index]) return false;
  }
  return true;
}

}  // namespace

void check_bound(const Plan& plan, const Bound& bound, const torch::jit::Stack& stack) {
  if (bound.kind == Bound::Kind::kZero) {
    const double number = stack[bound.argument].toDouble();
    TORCH_CHECK_INDEX(number == 0, plan.op.schema().arguments()[bound.argument].name(), " is ", number, " and must be 0");
    return;
  }
  const at::Tensor& numbers = stack[bound.argument].toTensor();
  const Extent extent = extent_of(numbers, bound);
  const auto name = [&]() -> const std::string& { return plan.op.schema().arguments()[bound.argument].name(); };
  if (bound.kind == Bound::Kind::kBags) {
    TORCH_CHECK_INDEX(extent.last < bound.end && extent.least == 0, name(), " begins ", extent.last, " bags where there are ", bound.end - 1,
                      ", or none at 0");
    return;
  }
  const bool from_one = bound.kind == Bound::Kind::kPivots || bound.kind == Bound::Kind::kBlocks;
  const int64_t least = from_one ? 1 : bound.kind == Bound::Kind::kEitherEnd ? -bound.end : 0;
  if (extent.least > extent.most) return;  // none leads anywhere
  TORCH_CHECK_INDEX(extent.least >= least && extent.most < bound.end && extent.last < bound.end, name(), " holds ", extent.least,
                    " to ", extent.last, ", which leads out of the other arguments");
  TORCH_CHECK_INDEX(bound.kind != Bound::Kind::kAscending || !extent.goes_down, name(), " holds a number below the one before it");
  TORCH_CHECK_INDEX(bound.kind != Bound::Kind::kBlocks || are_paired(numbers), name(), " holds a number below 0 that is not one of a pair");
}

void check_bounds(const Plan& plan, const torch::jit::Stack& stack) {
  for (const auto& bound : plan.bounds) check_bound(plan, bound, stack);
}

}  // namespace forebay::worker
