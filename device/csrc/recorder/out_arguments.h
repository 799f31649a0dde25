// `out=` where a worker's kernel cannot be given it: results of a size that only the worker knows, and, on a CPU, results of another
// layout than contiguous, which some kernels of PyTorch fill wrongly (gelu, avg_pool3d, lu_unpack).
#pragma once

#include <ATen/core/stack.h>

#include "base/operator_info.h"

namespace forebay {

bool has_strided_out(const OperatorInfo& info, const torch::jit::Stack& stack);

// Calls the operator that makes its results itself, copies them to the outs, and leaves these on the stack; false where there is none.
bool record_without_out(const OperatorInfo& info, torch::jit::Stack& stack);

// The fused observer of quantization gives its empty statistics a size, one for each channel: does so here. Returns whether it did.
bool size_statistics(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace forebay
