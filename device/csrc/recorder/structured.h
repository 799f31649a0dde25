// Geometry by the code that lays out results on every device.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>

namespace forebay {

// PyTorch's kernel for meta tensors of an operator whose results are laid out by one function for the CPU, for CUDA and for meta tensors;
// null where it is not among those listed. PyTorch's dispatcher has kernels in Python in their place, which need SymPy and take longer.
const c10::KernelFunction* structured_kernel(const std::string& name, const std::string& overload);

}  // namespace forebay
