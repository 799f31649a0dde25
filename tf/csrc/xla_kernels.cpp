#include "xla_kernels.h"

#include "bounds.h"
#include "tensorflow/compiler/jit/xla_compile_on_demand_op.h"
#include "tensorflow/compiler/jit/xla_device_ops.h"

namespace forebay::tf {
namespace {

class Bounded : public tensorflow::XlaCompileOnDemandOp {
 public:
  explicit Bounded(tensorflow::OpKernelConstruction* made) : XlaCompileOnDemandOp(made), check_(bounds_of(type_string())) {}
  void Compute(tensorflow::OpKernelContext* asked) override {
    if (const auto held = check_(*this, *asked); !held.ok()) return asked->CtxFailure(held);
    XlaCompileOnDemandOp::Compute(asked);
  }

 private:
  const Bounds check_;
};

}  // namespace

tensorflow::OpKernel* new_compiled(tensorflow::OpKernelConstruction* made) { return new tensorflow::XlaCompileOnDemandOp(made); }

tensorflow::OpKernel* new_bounded(tensorflow::OpKernelConstruction* made) { return new Bounded(made); }

tensorflow::OpKernel* new_assigned(tensorflow::OpKernelConstruction* made) { return new tensorflow::XlaAssignVariableOp(made); }

}  // namespace forebay::tf
