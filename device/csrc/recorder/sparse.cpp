#include "recorder/sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "base/devices.h"

namespace forebay {
namespace {

constexpr c10::DispatchKeySet kCoo(c10::DispatchKey::SparseCUDA);
constexpr c10::DispatchKeySet kCompressed(c10::DispatchKey::SparseCsrCUDA);

at::SparseTensorImpl& coo_of(const at::Tensor& tensor) { return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl()); }

at::SparseCsrTensorImpl& compressed_of(const at::Tensor& tensor) { return *static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl()); }

bool is_coalesced(const at::Tensor& tensor) { return tensor.layout() == at::kSparse && coo_of(tensor).coalesced(); }

at::Tensor coo(const wire::SparseHead& head, const std::vector<at::Tensor>& parts) {
  const auto &indices = parts[0], &values = parts[1];
  auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(kCoo, values.dtype());
  auto& impl = coo_of(tensor);
  impl.resize_(indices.size(0), values.dim() - 1, head.sizes);
  impl.set_indices_and_values_unsafe(indices, values);
  impl.set_coalesced(head.coalesced);
  return tensor;
}

at::Tensor compressed(c10::DeviceIndex device, const wire::SparseHead& head, const std::vector<at::Tensor>& parts) {
  auto tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(kCompressed, c10::Device(c10::kCUDA, device), static_cast<at::Layout>(head.layout),
                                                                 parts[2].dtype());
  compressed_of(tensor).set_member_tensors(parts[0], parts[1], parts[2], head.sizes);
  return tensor;
}

}  // namespace

std::vector<at::Tensor> parts_of(const at::Tensor& sparse) {
  if (sparse.layout() == at::kSparse) return {coo_of(sparse).indices(), coo_of(sparse).values()};
  TORCH_CHECK_NOT_IMPLEMENTED(wire::sparse_parts(static_cast<uint8_t>(sparse.layout())) == 3, "the virtual device takes no ", sparse.layout(), " tensors");
  const auto& impl = compressed_of(sparse);
  return {impl.compressed_indices(), impl.plain_indices(), impl.values()};
}

void put_sparse(wire::Writer& out, const at::Tensor& sparse, const std::function<void(wire::Writer&, const at::Tensor&)>& put_part) {
  TORCH_CHECK(wire::carries_sparse_sizes(sparse.sizes()), "a sparse tensor of sizes ", sparse.sizes(), ": the virtual device takes up to ",
              wire::kSparsePlacesMax, " places in one, filled or not");
  out.tag(wire::Tag::kSparse);
  wire::put_sparse_head(out, static_cast<uint8_t>(sparse.layout()), is_coalesced(sparse), sparse.sizes());
  for (const auto& part : parts_of(sparse)) put_part(out, part);
}

void add_sparse_key(std::vector<uint64_t>& key, const at::Tensor& sparse) {
  key.push_back(static_cast<uint64_t>(sparse.layout()) | static_cast<uint64_t>(is_coalesced(sparse)) << 8 | static_cast<uint64_t>(sparse.dim()) << 16);
  for (const int64_t size : sparse.sizes()) key.push_back(static_cast<uint64_t>(size));
}

at::Tensor get_sparse(c10::DeviceIndex device, wire::Reader& in, const std::function<at::Tensor(wire::Reader&)>& part) {
  const OnDevice there(device);
  const auto head = wire::get_sparse_head(in);
  std::vector<at::Tensor> parts;
  while (parts.size() < wire::sparse_parts(head.layout)) {
    const bool is_dense = in.left() > 0 && *in.position() == static_cast<uint8_t>(wire::OutputTag::kNew);
    TORCH_CHECK(is_dense, "the worker told of a sparse result whose parts are no tensors");
    parts.push_back(part(in));
  }
  return static_cast<at::Layout>(head.layout) == at::kSparse ? coo(head, parts) : compressed(device, head, parts);
}

at::Tensor sample_on_host(const at::Tensor& sparse) {
  const auto parts = parts_of(sparse);
  const auto options = sparse.options().device(at::kCPU).pinned_memory(std::nullopt);
  const int64_t filled = std::find(sparse.sizes().begin(), sparse.sizes().end(), 0) == sparse.sizes().end() ? 1 : 0;
  const auto zeros = [filled](const at::Tensor& part, int64_t dim) {
    auto sizes = part.sizes().vec();
    sizes[static_cast<size_t>(dim)] = filled;
    return at::zeros(sizes, part.options().device(at::kCPU).pinned_memory(std::nullopt));
  };
  if (sparse.layout() == at::kSparse) {
    return at::_sparse_coo_tensor_unsafe(zeros(parts[0], 1), zeros(parts[1], 0), sparse.sizes(), options, is_coalesced(sparse));
  }
  const int64_t batches = parts[1].dim() - 1;
  auto ends = at::full(parts[0].sizes(), filled, parts[0].options().device(at::kCPU).pinned_memory(std::nullopt));
  ends.select(-1, 0).zero_();
  return at::_sparse_compressed_tensor_unsafe(ends, zeros(parts[1], batches), zeros(parts[2], batches), sparse.sizes(), options);
}

void replace_parts(const at::Tensor& target, const at::Tensor& source) {
  TORCH_CHECK(target.layout() == source.layout(), "the result is a ", source.layout(), " tensor, which a ", target.layout(), " one cannot hold");
  TORCH_CHECK(c10::canCast(source.scalar_type(), target.scalar_type()), "result type ", source.scalar_type(), " can't be cast to the desired output type ",
              target.scalar_type());
  auto parts = parts_of(source);
  parts.back() = parts.back().to(target.scalar_type());
  if (target.layout() != at::kSparse) return compressed_of(target).set_member_tensors(parts[0], parts[1], parts[2], source.sizes());
  auto &to = coo_of(target), &from = coo_of(source);
  to.raw_resize_(from.sparse_dim(), from.dense_dim(), source.sizes());
  to.set_indices_and_values_unsafe(parts[0], parts[1]);
  to.set_coalesced(from.coalesced());
}

}  // namespace forebay
