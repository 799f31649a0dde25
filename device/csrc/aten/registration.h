// What takes the CUDA key of a stock PyTorch, each in its own file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace c10 {
class OperatorHandle;
class IValue;
}  // namespace c10

namespace forebay {

class KernelTable;

void install_operators();     // registration.cpp

// Rows of different lengths, padded and back.
void register_jagged(KernelTable& library);  // jagged.cpp

// Names of the operators that are sent to the worker as they are; it must allow them all.
std::vector<std::string>& recorded();  // registration.cpp

// Kernels that this side must have itself: making, viewing, copying, reading.
void register_kernels(KernelTable& library);  // kernels.cpp
// Operators PyTorch asks of CUDA devices alone, made of others.
void register_compositions(KernelTable& library);  // compositions.cpp

// The parts of a batch norm over several processes.
void register_batch_norm(KernelTable& library);  // batch_norm.cpp

// Composite, with a choice of our own; for the autograd key too, since its parts have their own derivatives.
void register_attention(KernelTable& library);  // attention.cpp
// Whether the worker holds it, and nobody looks on who would see the parts of a call: a fake tensor, vmap, functionalization.
bool is_held(const at::Tensor& tensor);

// Recurrent networks, a layer in one call; for the autograd key, too.
void register_recurrent(KernelTable& library);  // recurrent.cpp
void define_own_operators();

// Operators on sparse tensors, and those that make them of dense ones.
void register_sparse(KernelTable& dense, KernelTable& coo, KernelTable& compressed);  // sparse_kernels.cpp

// Those of torch.distributed, through host memory.
void register_collectives(KernelTable& table);  // collectives.cpp

// Puts away the kernels that this build of PyTorch has for the table's key, except where the table has ours, and their derivatives.
void take_over(KernelTable& ours, KernelTable& autograd);  // takeover.cpp
// The kernel of what the virtual device cannot do: an error that names the operator.
void refuse(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack);  // registration.cpp

}  // namespace forebay
