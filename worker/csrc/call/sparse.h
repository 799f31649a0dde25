// Sparse tensors, which a session holds as the dense tensors that they consist of.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/device.h"

namespace forebay::worker {

// Throws wire::WireError where an operator gets sparse tensors that takes none, or none where it takes nothing else.
void check_sparse_use(const Plan& plan);

// The sizes of a sparse argument, and how many of its places are filled, for its operator's contract.
LayoutRef sparse_layout(const ArgumentPlan& argument);

// The tensor that consists of these parts. Throws where they do not fit each other, and, on the host, where an index leads out of it.
at::Tensor sparse_tensor(const ArgumentPlan& argument, std::vector<at::Tensor> parts, const Device& device);

bool is_sparse(const at::Tensor& tensor);
std::vector<at::Tensor> parts_of(const at::Tensor& sparse);
void put_sparse_head(const at::Tensor& sparse, wire::Writer& out);

}  // namespace forebay::worker
