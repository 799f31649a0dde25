// Kernels that TensorFlow has for devices of XLA. Their headers are large, so no other file includes them.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"

namespace forebay::tf {

// Compiles its operator for the shapes that come, and runs the program.
tensorflow::OpKernel* new_compiled(tensorflow::OpKernelConstruction* made);

// As new_compiled(), once bounds_of() the operator hold.
tensorflow::OpKernel* new_bounded(tensorflow::OpKernelConstruction* made);

// Gives a variable a tensor, as it is.
tensorflow::OpKernel* new_assigned(tensorflow::OpKernelConstruction* made);

}  // namespace forebay::tf
