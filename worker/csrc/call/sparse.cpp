#include "call/sparse.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include <forebay/operators.h>

namespace forebay::worker {

namespace {

// Its kernels take indices and values for neighbours, and look at no bits that stand for a conjugate.
at::Tensor plain(const at::Tensor& part) { return part.resolve_conj().resolve_neg().contiguous(); }

void check_types(const std::vector<at::Tensor>& parts, bool compressed) {
  const auto type = parts.front().scalar_type();
  TORCH_CHECK(type == at::kLong || (compressed && type == at::kInt), "indices of a sparse tensor are of type ", type);
}

// PyTorch warns of tensors that nobody has checked; here that has been done, or is the device's to do.
void opt_out_of_checks() {
  static const bool done = (at::globalContext().setCheckSparseTensorInvariants(false), true);
  (void)done;
}

// Whether each place comes after the one before it: what is so is coalesced, and told sooner than PyTorch's check, which sorts.
bool ascends(const at::Tensor& indices) {
  const int64_t dims = indices.size(0), places = indices.size(1);
  const int64_t* const data = indices.const_data_ptr<int64_t>();
  for (int64_t place = 1; place < places; ++place) {
    int64_t dim = 0;
    while (dim < dims && data[dim * places + place] == data[dim * places + place - 1]) ++dim;
    if (dim == dims || data[dim * places + place] < data[dim * places + place - 1]) return false;
  }
  return true;
}

at::Tensor coo_tensor(const ArgumentPlan& argument, const std::vector<at::Tensor>& parts, bool checked) {
  const auto &indices = parts[0], &values = parts[1];
  TORCH_CHECK(indices.dim() == 2 && values.dim() > 0 && indices.size(1) == values.size(0) &&
                  indices.size(0) + values.dim() - 1 == static_cast<int64_t>(argument.sizes.size()),
              "indices ", indices.sizes(), " and values ", values.sizes(), " are no sparse tensor of sizes ", argument.sizes);
  if (checked) at::_validate_sparse_coo_tensor_args(indices, values, argument.sizes, argument.coalesced && !ascends(indices));
  return at::_sparse_coo_tensor_unsafe(indices, values, argument.sizes, values.options().layout(at::kSparse), argument.coalesced);
}

at::Tensor compressed_tensor(const ArgumentPlan& argument, const std::vector<at::Tensor>& parts) {
  const auto &compressed = parts[0], &indices = parts[1], &values = parts[2];
  at::_validate_sparse_compressed_tensor_args(compressed, indices, values, argument.sizes, argument.sparse);
  return at::_sparse_compressed_tensor_unsafe(compressed, indices, values, argument.sizes, values.options().layout(argument.sparse));
}

}  // namespace

void check_sparse_use(const Plan& plan) {
  const auto& name = plan.op.operator_name();
  const std::string local = name.name.substr(name.name.find("::") + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
  const bool takes = wire::takes_sparse(local), takes_dense = wire::is_listed(local) || wire::is_own(name.name);
  if (!plan.sparse.empty() && !takes) throw wire::WireError("a template of " + name.name + " passes a sparse tensor, which it does not take");
  if (plan.sparse.empty() && !takes_dense) throw wire::WireError("a template of " + name.name + " passes no sparse tensor, which it takes alone");
}

LayoutRef sparse_layout(const ArgumentPlan& argument) {
  Layout layout;
  layout.sizes = argument.sizes;
  const auto& indices = argument.items[argument.items.size() - 2].layout->sizes;  // (dimensions, places), or (batches, places)
  layout.sizes.push_back(indices.empty() ? 0 : indices.back());
  return std::make_shared<const Layout>(std::move(layout));
}

at::Tensor sparse_tensor(const ArgumentPlan& argument, std::vector<at::Tensor> parts, const Device& device) {
  const bool compressed = argument.sparse != c10::Layout::Sparse;
  opt_out_of_checks();
  for (auto& part : parts) part = plain(part);
  check_types(parts, compressed);
  return compressed ? compressed_tensor(argument, parts) : coo_tensor(argument, parts, device.is_host());
}

bool is_sparse(const at::Tensor& tensor) { return wire::sparse_parts(static_cast<uint8_t>(tensor.layout())) > 0; }

std::vector<at::Tensor> parts_of(const at::Tensor& sparse) {
  if (sparse.layout() == at::kSparse) return {sparse._indices(), sparse._values()};
  const auto [compressed, indices] = at::sparse_csr::getCompressedPlainIndices(sparse);
  return {compressed, indices, sparse.values()};
}

void put_sparse_head(const at::Tensor& sparse, wire::Writer& out) {
  const bool coalesced = sparse.layout() == at::kSparse && sparse.is_coalesced();
  wire::put_sparse_head(out, static_cast<uint8_t>(sparse.layout()), coalesced, sparse.sizes());
}

}  // namespace forebay::worker
