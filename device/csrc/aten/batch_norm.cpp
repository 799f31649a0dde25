// The parts of a batch norm over several processes (torch.nn.SyncBatchNorm): CUDA devices have kernels for them, no other device of PyTorch has.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"

namespace forebay {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

bool is_given(const Optional& tensor) { return tensor && tensor->defined(); }

// As CUDA's kernels accumulate.
at::ScalarType wide(const Tensor& input) { return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type(); }

// All dimensions but the channels'.
std::vector<int64_t> reduced_dims(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "a batch norm wants at least two dimensions, samples and channels, and was given ", input.dim());
  std::vector<int64_t> dims(static_cast<size_t>(input.dim() - 1));
  std::iota(dims.begin(), dims.end(), 1);
  dims.front() = 0;
  return dims;
}

// One number a channel, to be broadcast over the input.
Tensor spread(const Tensor& channels, const Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = -1;
  return channels.to(wide(input)).reshape(sizes);
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  const auto [variance, mean] = at::var_mean(input.to(wide(input)), at::OptionalIntArrayRef(reduced_dims(input)), /*correction=*/at::Scalar(0), /*keepdim=*/false);
  return {mean, (variance + eps).rsqrt()};
}

Tensor element(const Tensor& input, const Optional& weight, const Optional& bias, const Tensor& mean, const Tensor& invstd, double) {
  Tensor result = (input.to(wide(input)) - spread(mean, input)) * spread(invstd, input);
  if (is_given(weight)) result = result * spread(*weight, input);
  if (is_given(bias)) result = result + spread(*bias, input);
  return result.to(input.scalar_type());
}

Tensor& element_out(const Tensor& input, const Optional& weight, const Optional& bias, const Tensor& mean, const Tensor& invstd, double eps, Tensor& out) {
  return out.copy_(element(input, weight, bias, mean, invstd, eps));
}

void run_on(const Optional& running, const Tensor& now, double momentum) {
  if (is_given(running)) running->mul_(1 - momentum).add_(now.to(running->scalar_type()), momentum);
}

// Rows are processes: the mean and the variance of all samples, of those of each.
std::tuple<Tensor, Tensor> gather_with_counts(const Tensor&, const Tensor& mean, const Tensor& invstd, const Optional& running_mean, const Optional& running_var,
                                              double momentum, double eps, const Tensor& counts) {
  const Tensor samples = counts.to(mean.scalar_type()).reshape({-1, 1});
  const Tensor all = samples.sum();
  const Tensor together = (mean * samples).sum(0) / all;
  const Tensor variances = invstd.pow(-2) - eps + (mean - together).square();
  const Tensor squares = (variances * samples).sum(0);
  run_on(running_mean, together, momentum);
  run_on(running_var, squares / (all - 1), momentum);
  return {together, (squares / all + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather(const Tensor& input, const Tensor& mean, const Tensor& invstd, const Optional& running_mean, const Optional& running_var,
                                  double momentum, double eps, int64_t count) {
  const Tensor counts = at::full({mean.size(0)}, count, mean.options());
  return gather_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd, const Optional& weight,
                                                           bool for_input, bool for_weight, bool for_bias) {
  const auto dims = reduced_dims(input);
  const Tensor wide_grad = grad.to(wide(input));
  const Tensor sum = wide_grad.sum(dims), moved = (wide_grad * (input.to(wide(input)) - spread(mean, input))).sum(dims);
  const auto dtype = is_given(weight) ? weight->scalar_type() : sum.scalar_type();
  return {for_input ? sum : Tensor(), for_input ? moved : Tensor(), for_weight ? (moved * invstd).to(dtype) : Tensor(), for_bias ? sum.to(dtype) : Tensor()};
}

Tensor backward_element(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd, const Optional& weight, const Tensor& sum,
                        const Tensor& moved, const Tensor& counts) {
  const Tensor all = counts.sum().to(wide(input));
  const Tensor slope = moved * invstd.square() / all;
  const Tensor centred = grad.to(wide(input)) - spread(sum / all, input) - (input.to(wide(input)) - spread(mean, input)) * spread(slope, input);
  const Tensor scale = is_given(weight) ? weight->to(invstd.scalar_type()) * invstd : invstd;
  return (centred * spread(scale, input)).to(input.scalar_type());
}

}  // namespace

void register_batch_norm(KernelTable& library) {
  library.impl("batch_norm_stats", TORCH_FN(stats));
  library.impl("batch_norm_elemt", TORCH_FN(element));
  library.impl("batch_norm_elemt.out", TORCH_FN(element_out));
  library.impl("batch_norm_gather_stats", TORCH_FN(gather));
  library.impl("batch_norm_gather_stats_with_counts", TORCH_FN(gather_with_counts));
  library.impl("batch_norm_backward_reduce", TORCH_FN(backward_reduce));
  library.impl("batch_norm_backward_elemt", TORCH_FN(backward_element));
}

}  // namespace forebay
