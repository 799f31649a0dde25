// Sparse tensors on a virtual device: PyTorch's own, of dense parts that are the device's. To a worker they go as these parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "forebay/wire.h"

namespace forebay {

inline bool is_sparse(const at::Tensor& tensor) { return tensor.layout() != at::kStrided; }

// Indices and values; or compressed indices, plain indices and values. Throws for a layout that consists of other things.
std::vector<at::Tensor> parts_of(const at::Tensor& sparse);

// A template's words for it; `put_part` writes the geometry of one part.
void put_sparse(wire::Writer& out, const at::Tensor& sparse, const std::function<void(wire::Writer&, const at::Tensor&)>& put_part);

// What of it, beside its parts, makes two calls share a template.
void add_sparse_key(std::vector<uint64_t>& key, const at::Tensor& sparse);

// What the worker told of a sparse result; `part` reads one part of it.
at::Tensor get_sparse(c10::DeviceIndex device, wire::Reader& in, const std::function<at::Tensor(wire::Reader&)>& part);

// As the sparse tensor, on the host, with one place filled where there is one: what a kernel can be tried on.
at::Tensor sample_on_host(const at::Tensor& sparse);

// Has the target consist of what the source does, which is of the same layout.
void replace_parts(const at::Tensor& target, const at::Tensor& source);

}  // namespace forebay
