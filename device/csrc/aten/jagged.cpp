// Rows of different lengths, one after the other, and where each begins: what jagged tensors of torch.nested are made of. Between them and
// padded batches CUDA has kernels of a library; here they are made of operators that check their indices on every device.
#include <ATen/ATen.h>

#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"

namespace forebay {
namespace {

using at::Tensor;

// The one list of beginnings, [rows + 1]; deeper lists have no CPU kernel either.
const Tensor& beginnings(at::TensorList offsets) {
  TORCH_CHECK(offsets.size() == 1 && offsets.front().dim() == 1 && offsets.front().numel() >= 1,
              "jagged tensors on the virtual device have one list of offsets, of one dimension");
  return offsets.front();
}

// A truth value an element of the first dimensions, against a tensor that has more of them.
Tensor with_dims_of(const Tensor& condition, const Tensor& other) {
  auto sizes = condition.sizes().vec();
  sizes.resize(static_cast<size_t>(other.dim()), 1);
  return condition.view(sizes);
}

Tensor jagged_to_padded(const Tensor& values, at::TensorList offsets, at::IntArrayRef max_lengths, double padding) {
  const Tensor& begins = beginnings(offsets);
  TORCH_CHECK(max_lengths.size() == 1 && max_lengths.front() >= 0, "jagged tensors on the virtual device have one greatest length");
  const int64_t rows = begins.size(0) - 1, length = max_lengths.front();
  auto sizes = values.sizes().vec();
  sizes.front() = length;
  sizes.insert(sizes.begin(), rows);
  if (values.size(0) == 0 || rows == 0 || length == 0) return at::full(sizes, padding, values.options());
  const Tensor places = begins.slice(0, 0, rows).unsqueeze(1) + at::arange(length, begins.options());
  const Tensor taken = values.index_select(0, places.clamp(0, values.size(0) - 1).flatten()).view(sizes);
  return at::where(with_dims_of(places < begins.slice(0, 1).unsqueeze(1), taken), taken, at::scalar_tensor(padding, values.options()));
}

Tensor padded_to_jagged(const Tensor& dense, at::TensorList offsets, std::optional<int64_t> total) {
  const Tensor& begins = beginnings(offsets);
  TORCH_CHECK(dense.dim() >= 2 && dense.size(0) == begins.size(0) - 1, "a padded batch of ", dense.sizes(), " for ", begins.size(0) - 1, " rows");
  const int64_t rows = dense.size(0), length = dense.size(1), count = total ? *total : begins.select(0, rows).item<int64_t>();
  auto sizes = dense.sizes().slice(1).vec();
  sizes.front() = count;
  if (rows == 0 || length == 0 || count == 0) return at::zeros(sizes, dense.options());
  const Tensor slots = at::arange(count, begins.options());
  const Tensor row = at::searchsorted(begins.slice(0, 1), slots, /*out_int32=*/false, /*right=*/true).clamp_max(rows - 1);
  const Tensor column = slots - begins.index_select(0, row);
  const Tensor taken = dense.flatten(0, 1).index_select(0, (row * length + column.clamp(0, length - 1)).to(at::kLong));
  return at::where(with_dims_of(column < length, taken), taken, at::scalar_tensor(0, dense.options()));
}

}  // namespace

void register_jagged(KernelTable& library) {
  library.impl("_jagged_to_padded_dense_forward", TORCH_FN(jagged_to_padded));
  library.impl("_padded_dense_to_jagged_forward", TORCH_FN(padded_to_jagged));
}

}  // namespace forebay
