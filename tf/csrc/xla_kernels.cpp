#include "xla_kernels.h"

#include "tensorflow/compiler/jit/xla_compile_on_demand_op.h"
#include "tensorflow/compiler/jit/xla_device_ops.h"

namespace forebay::tf {

tensorflow::OpKernel* new_compiled(tensorflow::OpKernelConstruction* made) { return new tensorflow::XlaCompileOnDemandOp(made); }

tensorflow::OpKernel* new_assigned(tensorflow::OpKernelConstruction* made) { return new tensorflow::XlaAssignVariableOp(made); }

}  // namespace forebay::tf
