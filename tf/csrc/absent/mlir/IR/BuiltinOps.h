// TensorFlow's headers include this one of MLIR, which its wheel has not got. They name its classes; nothing here uses one.
#pragma once

namespace mlir {

class MLIRContext;
class Operation;

class ModuleOp {
  Operation* operation_ = nullptr;
};

template <typename Op>
class OwningOpRef {
  Op op_;
};

}  // namespace mlir
