// What arguments of an operator must be where XLA computes with any, and TensorFlow on a processor has an error.
#pragma once

#include <string>

#include "tensorflow/core/framework/op_kernel.h"

namespace forebay::tf {

// An error for arguments that are out of range. Indices in the device's memory are read for it, so it waits for what makes them.
using Bounds = absl::Status (*)(const tensorflow::OpKernel&, tensorflow::OpKernelContext&);

// nullptr where nothing is to be looked at.
Bounds bounds_of(const std::string& op);

}  // namespace forebay::tf
