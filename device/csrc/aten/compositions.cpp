// Operators that PyTorch asks of CUDA devices alone, made here of operators that every worker has.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ceil_div.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "stream/stream.h"

namespace forebay {
namespace {

using at::Tensor;

// A vendor's CTC loss is not asked of a worker: the native one serves every device.
bool use_vendor_ctc_loss(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool use_vendor_ctc_loss_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

// Workspace: the four activated gates (input, forget, cell, output), side by side.
std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                                   const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias && hidden_bias->defined()) gates = gates + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell_backward(const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                            const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy && grad_hy->defined(), has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto parts = workspace.chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor from_hy = has_hy ? *grad_hy : at::zeros_like(cy);
  Tensor from_cy = from_hy * out * (1 - tanh_cy * tanh_cy);
  if (has_cy) from_cy = from_cy + *grad_cy;
  const Tensor grad_gates = at::cat(
      {
          from_cy * cell * in * (1 - in),
          from_cy * cx * forget * (1 - forget),
          from_cy * in * (1 - cell * cell),
          from_hy * tanh_cy * out * (1 - out),
      },
      1);
  return {grad_gates, from_cy * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

// Workspace: reset, update, new gates, the hidden state, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> fused_gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                          const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const bool has_bias = input_bias && input_bias->defined();
  const auto from_input = (has_bias ? input_gates + *input_bias : input_gates).chunk(3, 1);
  const auto from_hidden = (has_bias ? hidden_gates + *hidden_bias : hidden_gates).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const Tensor to_update = grad_hy * (hx - fresh) * update * (1 - update);
  const Tensor to_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor to_reset = to_fresh * hidden * reset * (1 - reset);
  const Tensor grad_input = at::cat({to_reset, to_update, to_fresh}, 1), grad_hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(), has_bias ? grad_hidden.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> fused_dropout(const Tensor& self, double keep, std::optional<at::Generator> generator) {
  const Tensor mask = at::empty_like(self).bernoulli_(keep, std::move(generator));
  return {self * mask / keep, mask.to(at::kByte)};
}

Tensor masked_scale(const Tensor& self, const Tensor& mask, double scale) { return self * mask.to(self.dtype()) * scale; }

// Of ranges of padded batches: the layers that ask go on with the padded batch.
bool nested_from_mask(const Tensor&, const Tensor&) { return false; }

// A CPU worker counts floating-point numbers only; GPUs count integers, too.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const bool widened = CommandStream::of(self.get_device()).worker().is_cpu && at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  Tensor counts = at::empty({bins}, widened ? self.options().dtype(at::kDouble) : self.options());
  at::histc_out(counts, widened ? self.to(at::kDouble) : self, bins, min, max);
  return widened ? counts.to(self.scalar_type()) : counts;
}

void copy_out(const Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

// The CPU's kernels write past results in another layout than their own, so a worker is not asked for `out`.
std::tuple<Tensor&, Tensor&, Tensor&> lu_unpack_out(const Tensor& data, const Tensor& pivots, bool unpack_data, bool unpack_pivots, Tensor& permutation,
                                                    Tensor& lower, Tensor& upper) {
  const auto [p, l, u] = at::lu_unpack(data, pivots, unpack_data, unpack_pivots);
  copy_out(permutation, p), copy_out(lower, l), copy_out(upper, u);
  return {permutation, lower, upper};
}

std::tuple<Tensor&, Tensor&, Tensor&> linalg_lu_out(const Tensor& self, bool pivot, Tensor& permutation, Tensor& lower, Tensor& upper) {
  const auto [p, l, u] = at::linalg_lu(self, pivot);
  copy_out(permutation, p), copy_out(lower, l), copy_out(upper, u);
  return {permutation, lower, upper};
}

// Products whose result is wider than their factors: CUDA's libraries have kernels for it, no other device of PyTorch has.
Tensor mm_wide(const Tensor& self, const Tensor& other, at::ScalarType dtype) { return at::mm(self.to(dtype), other.to(dtype)); }

Tensor bmm_wide(const Tensor& self, const Tensor& other, at::ScalarType dtype) { return at::bmm(self.to(dtype), other.to(dtype)); }

Tensor addmm_wide(const Tensor& self, const Tensor& one, const Tensor& other, at::ScalarType dtype, const at::Scalar& beta, const at::Scalar& alpha) {
  return at::addmm(self.to(dtype), one.to(dtype), other.to(dtype), beta, alpha);
}

Tensor baddbmm_wide(const Tensor& self, const Tensor& one, const Tensor& other, at::ScalarType dtype, const at::Scalar& beta, const at::Scalar& alpha) {
  return at::baddbmm(self.to(dtype), one.to(dtype), other.to(dtype), beta, alpha);
}

template <Tensor (*product)(const Tensor&, const Tensor&, at::ScalarType)>
Tensor& product_out(const Tensor& self, const Tensor& other, at::ScalarType dtype, Tensor& out) {
  copy_out(out, product(self, other, dtype));
  return out;
}

template <Tensor (*product)(const Tensor&, const Tensor&, const Tensor&, at::ScalarType, const at::Scalar&, const at::Scalar&)>
Tensor& added_product_out(const Tensor& self, const Tensor& one, const Tensor& other, at::ScalarType dtype, const at::Scalar& beta,
                          const at::Scalar& alpha, Tensor& out) {
  copy_out(out, product(self, one, other, dtype, beta, alpha));
  return out;
}

// Refused in PyTorch's words, as on a GPU. Returns the dimension, counted from the front.
int64_t check_chunk_cat(at::TensorList tensors, int64_t dim, int64_t chunks) {
  TORCH_CHECK(chunks >= 1, "_chunk_cat expects positive num_chunks");
  TORCH_CHECK(!tensors.empty(), "_chunk_cat expects a non-empty input tensor list");
  const auto& first = tensors.front();
  const bool same_rank = std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.dim() == first.dim(); });
  TORCH_CHECK(dim >= 0 || same_rank, "_chunk_cat expects non-negative dim when input tensors have different ndims");
  if (same_rank) dim = at::maybe_wrap_dim(dim, first.dim());
  for (const auto& tensor : tensors) {
    TORCH_CHECK(tensor.numel() > 0, "_chunk_cat expects non-empty tensor");
    TORCH_CHECK(tensor.dtype() == first.dtype(), "_chunk_cat expects all input tensors with the same dtype");
    TORCH_CHECK(dim < tensor.dim(), "_chunk_cat expects dim < ndim for all input tensors");
    TORCH_CHECK(tensor.sizes().slice(0, dim) == first.sizes().slice(0, dim), "_chunk_cat expects same sizes of 0,...,dim-1 dimensions for all tensors");
  }
  return dim;
}

// Each tensor is cut into as many chunks along dim, the last filled up with zeros; chunk by chunk they stand side by side.
Tensor chunk_cat(at::TensorList tensors, int64_t dim, int64_t chunks) {
  dim = check_chunk_cat(tensors, dim, chunks);
  std::vector<Tensor> parts;
  for (const auto& tensor : tensors) {
    const auto missing = at::ceil_div(tensor.size(dim), chunks) * chunks - tensor.size(dim);
    std::vector<int64_t> padding(static_cast<size_t>(2 * (tensor.dim() - dim)), 0);
    padding.back() = missing;
    std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().begin() + dim);
    sizes.insert(sizes.end(), {chunks, -1});
    parts.push_back(at::constant_pad_nd(tensor, padding, 0).reshape(sizes));
  }
  return at::cat(parts, dim + 1);
}

Tensor& chunk_cat_out(at::TensorList tensors, int64_t dim, int64_t chunks, Tensor& out) {
  copy_out(out, chunk_cat(tensors, dim, chunks));
  return out;
}

// As on a GPU, where it is no kernel of its own: a CPU's refuses in other words.
Tensor narrow_copy(const Tensor& self, int64_t dim, int64_t start, int64_t length) {
  return self.narrow(dim, start, length).clone(at::MemoryFormat::Contiguous);
}

Tensor& narrow_copy_out(const Tensor& self, int64_t dim, int64_t start, int64_t length, Tensor& out) {
  copy_out(out, self.narrow(dim, start, length));
  return out;
}

bool has_operator(const std::string& name) { return c10::Dispatcher::singleton().findOp({name, ""}).has_value(); }

}  // namespace

void register_compositions(KernelTable& library) {
  for (const std::string vendor : {"cudnn", "miopen"}) {
    if (!has_operator("aten::_use_" + vendor + "_ctc_loss")) continue;  // MIOpen's came with torch 2.12
    library.impl("_use_" + vendor + "_ctc_loss", TORCH_FN(use_vendor_ctc_loss));
    library.impl("_use_" + vendor + "_ctc_loss.Tensor", TORCH_FN(use_vendor_ctc_loss_tensor));
  }
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(fused_lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(fused_lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(fused_gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_cell_backward));
  library.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_from_mask));
  library.impl("histc", TORCH_FN(histc));
  library.impl("mm.dtype", TORCH_FN(mm_wide));
  library.impl("mm.dtype_out", TORCH_FN(product_out<mm_wide>));
  library.impl("bmm.dtype", TORCH_FN(bmm_wide));
  library.impl("bmm.dtype_out", TORCH_FN(product_out<bmm_wide>));
  library.impl("addmm.dtype", TORCH_FN(addmm_wide));
  library.impl("addmm.dtype_out", TORCH_FN(added_product_out<addmm_wide>));
  library.impl("baddbmm.dtype", TORCH_FN(baddbmm_wide));
  library.impl("baddbmm.dtype_out", TORCH_FN(added_product_out<baddbmm_wide>));
  library.impl("lu_unpack.out", TORCH_FN(lu_unpack_out));
  library.impl("linalg_lu.out", TORCH_FN(linalg_lu_out));
  library.impl("_chunk_cat", TORCH_FN(chunk_cat));
  library.impl("_chunk_cat.out", TORCH_FN(chunk_cat_out));
  library.impl("narrow_copy", TORCH_FN(narrow_copy));
  library.impl("narrow_copy.out", TORCH_FN(narrow_copy_out));
  library.impl("_fused_dropout", TORCH_FN(fused_dropout));
  library.impl("_masked_scale", TORCH_FN(masked_scale));
}

}  // namespace forebay
