// Operators on sparse tensors. Most of PyTorch's kernels for them are the same on every device and do all by operators on the parts: those
// run here. The others are recorded, and a worker runs its own on a tensor that it assembles of the parts.
#include <ATen/ATen.h>
#include <ATen/ops/_validate_compressed_sparse_indices.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aten/kernel_table.h"
#include "aten/registration.h"
#include "base/devices.h"
#include "base/operator_info.h"
#include "forebay/operators.h"
#include "recorder/recorder.h"
#include "recorder/sparse.h"

namespace forebay {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr std::string_view kCooOperators[] = {
#include "aten/sparse_coo.inc"
};
constexpr std::string_view kCompressedOperators[] = {
#include "aten/sparse_compressed.inc"
};

// The overload that gives what another one writes to a sparse tensor.
struct Functional {
  std::string_view written;
  std::string_view made;
};
constexpr Functional kFunctionals[] = {
    {"add.out", "add.Tensor"}, {"addmm.out", "addmm"},     {"addmm_", "addmm"},
    {"hspmm.out", "hspmm"},    {"mul.out", "mul.Tensor"}, {"sparse_sampled_addmm.out", "sparse_sampled_addmm"},
    {"sspaddmm.out", "sspaddmm"},
};

// What gives dense tensors whose sizes those of its arguments tell; what the others give only the worker knows.
constexpr std::string_view kDense[] = {"add.out", "addmm.out", "addmm_", "addmv.out", "bmm", "bmm.out", "triangular_solve.X"};

// Recorded with sparse arguments, by the kind of tensors.
constexpr std::string_view kRecordedCoo[] = {
    "_coalesce",
    "_sparse_log_softmax",
    "_sparse_log_softmax_backward_data",
    "_sparse_mask_projection",
    "_sparse_softmax",
    "_sparse_softmax_backward_data",
    "_sparse_sparse_matmul",
    "_sparse_sum_backward",
    "add.out",
    "addmm",
    "addmm.out",
    "addmm_",
    "bmm",
    "bmm.out",
    "hspmm",
    "hspmm.out",
    "index_select",
    "mul.out",
    "sparse_mask",
    "sspaddmm.out",
};
constexpr std::string_view kRecordedCompressed[] = {
    "_sparse_csr_prod.dim_dtype",
    "_sparse_csr_sum.dim_dtype",
    "_sparse_mm_reduce_impl",
    "_sparse_mm_reduce_impl_backward",
    "_to_sparse_bsc",
    "_to_sparse_bsr",
    "_to_sparse_csc",
    "_to_sparse_csr",
    "add.out",
    "addmm.out",
    "addmv.out",
    "sparse_sampled_addmm",
    "sparse_sampled_addmm.out",
    "triangular_solve.X",
};

template <typename List>
bool holds(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::optional<c10::OperatorHandle> operator_of(std::string_view local) {
  const size_t dot = local.find('.');
  const std::string overload(dot == std::string_view::npos ? "" : local.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchema({"aten::" + std::string(local.substr(0, dot)), overload});
}

OperatorInfo info_of(std::string_view local, bool dense) {
  OperatorInfo info(*operator_of(local));
  info.sparse = true;
  info.asks = info.asks || !dense;
  return info;
}

// The device that a call is for: that of its first tensor there, else the one it names.
std::optional<c10::DeviceIndex> device_of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::DeviceIndex> named;
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) return value.toTensor().get_device();
    if (value.isTensorList() && !value.toListRef().empty() && value.toListRef().front().toTensor().is_cuda()) {
      return value.toListRef().front().toTensor().get_device();
    }
    if (value.isDevice() && value.toDevice().is_cuda()) named = device_named(value.toDevice());
  }
  return named;
}

// A kernel of the CPU's that is the same for every device: what it makes of nothing is made on the device that is current.
class SharedKernel final : public c10::OperatorKernel {
 public:
  SharedKernel(const c10::OperatorHandle& op, c10::DispatchKey host) : kernel_(op.getComputedKernelForDispatchKey(host)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const OnDevice there(device_of(torch::jit::last(*stack, op.schema().arguments().size())).value_or(current_device()));
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction kernel_;
};

class SparseRecordKernel final : public c10::OperatorKernel {
 public:
  // COO's sums of products are dense; those of compressed tensors may not be, and ask for `out` in any case.
  explicit SparseRecordKernel(std::string_view local) : info_(info_of(local, local == "addmm" || holds(kDense, local))) {
    if (wire::takes_sparse(local)) sent_.emplace_back(local);
    for (const auto& [written, made] : kFunctionals) {
      if (written != local) continue;
      functional_ = info_of(made, /*dense=*/false);
      sent_.emplace_back(made);
    }
  }

  // The names under which a worker gets its calls.
  const std::vector<std::string>& sent() const { return sent_; }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    const size_t count = info_.arguments.size();
    Stack arguments(std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(count)), std::make_move_iterator(stack->end()));
    stack->resize(stack->size() - count);
    if (const auto target = sparse_target(arguments)) {
      make_for(*target, arguments);
    } else {
      Recorder::of(info_, arguments).record(info_, arguments);
    }
    std::move(arguments.begin(), arguments.end(), std::back_inserter(*stack));
  }

 private:
  std::optional<Tensor> sparse_target(const Stack& arguments) const {
    for (size_t index = 0; index < arguments.size(); ++index) {
      if (info_.arguments[index].written && arguments[index].isTensor() && is_sparse(arguments[index].toTensor())) return arguments[index].toTensor();
    }
    return std::nullopt;
  }

  // The worker gives a new tensor, whose parts become those of the one that is written to.
  void make_for(const Tensor& target, Stack& arguments) {
    TORCH_CHECK(functional_, info_.name, " cannot write to a ", target.layout(), " tensor");
    arguments.resize(functional_->arguments.size());
    const bool is_read = std::any_of(arguments.begin(), arguments.end(), [&](const auto& value) { return value.isTensor() && value.toTensor().is_same(target); });
    Recorder::of(*functional_, arguments).record(*functional_, arguments);
    const Tensor& result = arguments.front().toTensor();
    TORCH_CHECK(!is_read || result.sizes() == target.sizes(), "output with shape ", target.sizes(), " doesn't match the broadcast shape ", result.sizes());
    replace_parts(target, result);
    arguments = {target};
  }

  OperatorInfo info_;
  std::optional<OperatorInfo> functional_;
  std::vector<std::string> sent_;
};

// From one compressed layout to another a worker converts; to COO PyTorch's kernel of every device does.
class ConversionKernel final : public c10::OperatorKernel {
 public:
  explicit ConversionKernel(const c10::OperatorHandle& op) : to_coo_(op, c10::DispatchKey::SparseCsrCPU) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto layout = torch::jit::peek(*stack, 1, 4).toOptional<at::Layout>().value_or(at::kSparse);
    if (layout == at::kSparse || layout == at::kStrided) return to_coo_(op, keys, stack);
    const auto self = torch::jit::peek(*stack, 0, 4).toTensor();
    const auto blocksize = torch::jit::peek(*stack, 2, 4).isNone() ? std::vector<int64_t>() : torch::jit::peek(*stack, 2, 4).toIntVector();
    const auto dense_dim = torch::jit::peek(*stack, 3, 4).toOptional<int64_t>();
    torch::jit::drop(*stack, 4);
    stack->emplace_back(convert(self, layout, blocksize, dense_dim));
  }

 private:
  static Tensor convert(const Tensor& self, at::Layout layout, at::IntArrayRef blocksize, std::optional<int64_t> dense_dim) {
    if (layout == at::kSparseCsr) return self._to_sparse_csr(dense_dim);
    if (layout == at::kSparseCsc) return self._to_sparse_csc(dense_dim);
    if (layout == at::kSparseBsr) return self._to_sparse_bsr(blocksize, dense_dim);
    return self._to_sparse_bsc(blocksize, dense_dim);
  }

  SharedKernel to_coo_;
};

// Conversions of indices between forms, for which each kind of device has a kernel of its own that trusts them.

Tensor rows_to_ends(const Tensor& rows, int64_t size, bool out_int32) {
  return at::searchsorted(rows, at::arange(size + 1, rows.options()), out_int32);
}

// Each place's row (and batch), beside its column.
Tensor ends_to_rows(const Tensor& ends, const Tensor& columns, bool out_int32, bool transpose) {
  const int64_t count = columns.size(-1);
  const Tensor places = at::arange(count, ends.options()).expand(columns.sizes()).contiguous();
  const Tensor rows = (at::searchsorted(ends.contiguous(), places, out_int32, /*right=*/true) - 1).reshape({-1});
  const Tensor plain = columns.reshape({-1}).to(rows.scalar_type());
  std::vector<Tensor> indices{transpose ? plain : rows, transpose ? rows : plain};
  if (ends.dim() > 1) {
    const int64_t batches = columns.numel() / std::max<int64_t>(count, 1);
    indices.insert(indices.begin(), at::arange(batches, rows.options()).repeat_interleave(count, 0, batches * count));
  }
  return at::stack(indices);
}

// Asked for where a program has invariants checked: by the CPU's kernel, with its words.
void validate_indices(bool is_crow, const Tensor& compressed, const Tensor& plain, int64_t cdim, int64_t dim, int64_t nnz) {
  at::_validate_compressed_sparse_indices(is_crow, compressed.cpu(), plain.cpu(), cdim, dim, nnz);
}

// The CPU's kernel, for tensors of a virtual device.
void share(KernelTable& table, std::string_view local, c10::DispatchKey key) {
  const auto op = operator_of(local);
  if (op && op->hasKernelForDispatchKey(key)) table.impl("aten", std::string(local), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SharedKernel>(*op, key)));
}

template <typename Shared, typename Recorded>
void fill(KernelTable& table, const Shared& shared, const Recorded& recorded_here, c10::DispatchKey host) {
  for (const auto name : shared) share(table, name, host);
  for (const auto name : recorded_here) {
    const auto op = operator_of(name);
    if (!op || !op->hasKernelForDispatchKey(host)) continue;
    auto kernel = std::make_unique<SparseRecordKernel>(name);
    for (const auto& sent : kernel->sent()) recorded().push_back(sent);
    table.impl("aten", std::string(name), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
}

}  // namespace

void register_sparse(KernelTable& dense, KernelTable& coo, KernelTable& compressed) {
  for (const auto name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    share(dense, name, c10::DispatchKey::CPU);
  }
  dense.impl("_convert_indices_from_coo_to_csr", TORCH_FN(rows_to_ends));
  dense.impl("_convert_indices_from_csr_to_coo", TORCH_FN(ends_to_rows));
  dense.impl("_validate_compressed_sparse_indices", TORCH_FN(validate_indices));
  fill(coo, kCooOperators, kRecordedCoo, c10::DispatchKey::SparseCPU);
  fill(compressed, kCompressedOperators, kRecordedCompressed, c10::DispatchKey::SparseCsrCPU);
  compressed.impl("aten", "_to_sparse", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ConversionKernel>(*operator_of("_to_sparse"))));
}

}  // namespace forebay
