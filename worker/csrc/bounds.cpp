#include "bounds.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include <ATen/ops/abs.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/lt.h>
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
    extent.least = std::min(extent.least, number);
    extent.most = std::max(extent.most, number);
    if (bound.kind == Bound::Kind::kBags) extent.last += number < bound.below;
    if (bound.kind != Bound::Kind::kLengths) continue;
    sum = std::min(kSumMax, (index % row == 0 ? 0 : sum) + std::clamp(number, int64_t{0}, kSumMax));
    extent.last = std::max(extent.last, sum);
  }
  if (bound.kind != Bound::Kind::kLengths && bound.kind != Bound::Kind::kBags) extent.last = extent.most;
  return extent;
}

Extent extent_by_pytorch(const at::Tensor& numbers, const Bound& bound) {
  const auto [least, most] = at::aminmax(bound.kind == Bound::Kind::kBlocks ? numbers.abs() : numbers);
  Extent extent{least.item().toLong(), most.item().toLong(), 0};
  extent.last = extent.most;
  if (bound.kind == Bound::Kind::kLengths) {
    const bool wraps = extent.most > kSumMax / numbers.size(-1);
    extent.last = wraps ? kSumMax : numbers.sum(-1).max().item().toLong();
  }
  if (bound.kind == Bound::Kind::kBags) extent.last = numbers.lt(bound.below).sum().item().toLong();
  return extent;
}

Extent extent_of(const at::Tensor& numbers, const Bound& bound) {
  if (numbers.is_cpu() && numbers.numel() <= kNumbersHere) {
    if (numbers.scalar_type() == at::kLong) return extent_here<int64_t>(numbers, bound);
    if (numbers.scalar_type() == at::kInt) return extent_here<int32_t>(numbers, bound);
  }
  return extent_by_pytorch(numbers, bound);
}

}  // namespace

void check_bounds(const Plan& plan, const torch::jit::Stack& stack) {
  for (const auto& bound : plan.bounds) {
    const Extent extent = extent_of(stack[bound.argument].toTensor(), bound);
    const auto name = [&]() -> const std::string& { return plan.op.schema().arguments()[bound.argument].name(); };
    if (bound.kind == Bound::Kind::kBags) {
      TORCH_CHECK_INDEX(extent.last < bound.end && extent.least == 0, name(), " begins ", extent.last, " bags where there are ", bound.end - 1,
                        ", or none at 0");
      continue;
    }
    const bool from_one = bound.kind == Bound::Kind::kPivots || bound.kind == Bound::Kind::kBlocks;
    TORCH_CHECK_INDEX(extent.least >= (from_one ? 1 : 0) && extent.most < bound.end && extent.last < bound.end, name(), " holds ", extent.least,
                      " to ", extent.last, ", which leads out of the other arguments");
  }
}

}  // namespace forebay::worker
