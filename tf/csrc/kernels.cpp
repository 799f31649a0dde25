#include "kernels.h"

#include <algorithm>
#include <memory>

#include "bounds.h"
#include "device.h"
#include "host_reasons.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla_kernels.h"

namespace forebay::tf {
namespace {

using tensorflow::DataType;
using tensorflow::KernelDef;
using tensorflow::OpDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

using Names = std::set<std::string>;

// TensorFlow's kernels for any device pass these on, and look at no element.
const Names kPassedOn = {
    "Const", "ControlTrigger", "DebugGradientIdentity", "DestroyResourceOp", "EagerPyFunc", "EnsureShape", "Enter", "Exit", "ExpandDims", "FakeParam", "Identity", "IdentityN",
    "IsVariableInitialized", "Merge", "NextIteration", "PartitionedCall", "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "PreventGradient", "Rank", "ReadVariableOp",
    "Recv", "Reshape", "Send", "Shape", "ShapeN", "Size", "Snapshot", "Squeeze", "StatefulPartitionedCall", "StopGradient", "Switch", "VarHandleOp", "VarIsInitializedOp",
    "VariableShape", "_Arg", "_ArrayToList", "_DeviceArg", "_DeviceRetval", "_EagerConst", "_ListToArray", "_ReadVariablesOp", "_Recv", "_Retval", "_Send", "_SwitchN"};

// Of these, they look at sizes alone.
const Names kMeasured = {"OnesLike", "ZerosLike"};

// Beginnings of names. Their operators are on the host together, also those that look at no element.
const char* const kContainers[] = {"EmptyTensorList", "FIFOQueue", "Queue", "Stack", "TensorList"};

bool is_container(const std::string& name) {
  return std::any_of(std::begin(kContainers), std::end(kContainers), [&](const char* family) { return name.rfind(family, 0) == 0; });
}

bool is_compiled(const std::string& name) { return !is_passed_on(name) && why_on_host(name) == nullptr; }

const OpDef* find_operator(const std::string& name) {
  const OpDef* found = nullptr;
  return tensorflow::OpRegistry::Global()->LookUpOpDef(name, &found).ok() ? found : nullptr;
}

// Whether other types are left.
template <typename Left>
bool leave_out(KernelDef::AttrConstraint& constraint, const Left& is_left) {
  auto& types = *constraint.mutable_allowed_values()->mutable_list()->mutable_type();
  types.erase(std::remove_if(types.begin(), types.end(), [&](int type) { return is_left(static_cast<DataType>(type)); }), types.end());
  return !types.empty();
}

// False where nothing else is left.
bool leave_types(KernelDef& kernel, const std::set<DataType>& types) {
  bool is_left = true;
  for (auto& constraint : *kernel.mutable_constraint()) {
    if (!types.empty()) is_left &= leave_out(constraint, [&](DataType type) { return types.count(type) != 0; });
  }
  return is_left;
}

// A number with a fraction that no whole number is near, as infinity, becomes one of TensorFlow's choice.
void leave_rounding_to_host(KernelDef& whole, KernelDef& other) {
  for (auto& constraint : *whole.mutable_constraint()) {
    if (constraint.name() == "SrcT") leave_out(constraint, [](DataType type) { return !tensorflow::DataTypeIsInteger(type) && type != tensorflow::DT_BOOL; });
  }
  for (auto& constraint : *other.mutable_constraint()) {
    const bool made = constraint.name() == "DstT";
    leave_out(constraint, [&](DataType type) { return tensorflow::DataTypeIsInteger(type) || (!made && type == tensorflow::DT_BOOL); });
  }
}

// Numbers of 32 bits that a kernel makes lie in the host's memory, everywhere in TensorFlow. False where nothing else is left.
bool leave_int32_to_host(const OpDef& op, KernelDef& kernel) {
  Names made;
  for (const auto& output : op.output_arg()) {
    if (output.type() == tensorflow::DT_INT32) return false;
    made.insert({output.type_attr(), output.type_list_attr()});
  }
  for (auto& constraint : *kernel.mutable_constraint()) {
    if (made.count(constraint.name()) != 0 && !leave_out(constraint, [](DataType type) { return type == tensorflow::DT_INT32; })) return false;
  }
  return true;
}

void enter(std::unique_ptr<KernelDef> kernel, const char* name, OpKernel* (*make)(OpKernelConstruction*)) {
  kernel->set_device_type(kType);
  new tensorflow::kernel_factory::OpKernelRegistrar(kernel.release(), name, make);  // for good, as all kernels
}

class Refused : public OpKernel {
 public:
  explicit Refused(OpKernelConstruction* made) : OpKernel(made) {}
  void Compute(OpKernelContext* asked) override {
    asked->CtxFailure(absl::UnimplementedError("the operator " + type_string() + " is not served on the virtual device; place it with tf.device(\"/CPU:0\")"));
  }
};

OpKernel* new_refused(OpKernelConstruction* made) { return new Refused(made); }

// For types that no other kernel takes.
void refuse(const OpDef& op) {
  auto kernel = std::make_unique<KernelDef>();
  kernel->set_op(op.name());
  for (const auto& input : op.input_arg()) {
    if (input.type() == tensorflow::DT_RESOURCE) kernel->add_host_memory_arg(input.name());
  }
  enter(std::move(kernel), "Refused", new_refused);
}

void register_compiled() {
  for (const KernelDef* found : tensorflow::XlaOpRegistry::DeviceKernels(tensorflow::DEVICE_CPU_XLA_JIT, false)) {
    const OpDef* op = find_operator(found->op());
    if (op == nullptr || !is_compiled(found->op())) continue;
    auto kernel = std::make_unique<KernelDef>(*found);
    if (!leave_int32_to_host(*op, *kernel)) continue;
    if (!types_refused(found->op()).empty()) refuse(*op);
    if (!leave_types(*kernel, types_on_host(found->op())) || !leave_types(*kernel, types_refused(found->op()))) continue;
    for (const auto& constant : *tensorflow::XlaOpRegistry::CompileTimeConstantInputArgNames(found->op())) kernel->add_host_memory_arg(constant);
    kernel->set_priority(1);  // before a refusal
    const bool is_bounded = bounds_of(found->op()) != nullptr;
    if (found->op() == "Cast") {
      auto other = std::make_unique<KernelDef>(*kernel);
      leave_rounding_to_host(*kernel, *other);
      enter(std::move(other), "XlaCompileOnDemandOp", new_compiled);
    }
    enter(std::move(kernel), "XlaCompileOnDemandOp", is_bounded ? new_bounded : new_compiled);
  }
}

// Whether the kernel has numbers in a device's memory.
bool computes(const KernelDef& kernel, const OpDef& op) {
  const auto of_device = [&](const OpDef::ArgDef& arg) {
    const auto& host = kernel.host_memory_arg();
    return arg.type() != tensorflow::DT_RESOURCE && arg.type() != tensorflow::DT_VARIANT && std::find(host.begin(), host.end(), arg.name()) == host.end();
  };
  return std::any_of(op.input_arg().begin(), op.input_arg().end(), of_device) || std::any_of(op.output_arg().begin(), op.output_arg().end(), of_device);
}

// TensorFlow's kernels for any device that would take a handle for memory of the host.
std::vector<KernelDef> unfit_kernels() {
  std::vector<KernelDef> kernels;
  const auto all = tensorflow::GetAllRegisteredKernels();
  for (const auto& kernel : all.kernel()) {
    if (kernel.device_type() != tensorflow::DEVICE_DEFAULT || kPassedOn.count(kernel.op()) + kMeasured.count(kernel.op()) != 0) continue;
    const OpDef* op = find_operator(kernel.op());
    if (op != nullptr && (computes(kernel, *op) || is_container(kernel.op()))) kernels.push_back(kernel);
  }
  return kernels;
}

void register_refused() {
  for (const auto& kernel : unfit_kernels()) enter(std::make_unique<KernelDef>(kernel), "Refused", new_refused);
}

// A variable takes the tensor as it is: no program writes to what it is given.
void register_assigned() {
  auto kernel = std::make_unique<KernelDef>();
  kernel->set_op("AssignVariableOp");
  kernel->add_host_memory_arg("resource");
  kernel->set_priority(1);
  auto& constraint = *kernel->add_constraint();
  constraint.set_name("dtype");
  for (const DataType type : tensorflow::kCpuAllTypes) {
    if (type != tensorflow::DT_INT32) constraint.mutable_allowed_values()->mutable_list()->add_type(type);
  }
  enter(std::move(kernel), "XlaAssignVariableOp", new_assigned);
}

}  // namespace

bool is_passed_on(const std::string& name) { return kPassedOn.count(name) != 0; }

bool has_program(const std::string& name) {
  static const Names names = [] {
    Names found;
    for (const auto* kernel : tensorflow::XlaOpRegistry::DeviceKernels(tensorflow::DEVICE_CPU_XLA_JIT, false)) found.insert(kernel->op());
    return found;
  }();
  return names.count(name) != 0;
}

void register_kernels() {
  register_refused();
  register_compiled();
  register_assigned();
}

const Names& host_operators() {
  static const Names names = [] {
    Names found;
    for (const auto& kernel : unfit_kernels()) {
      if (!is_compiled(kernel.op()) || is_container(kernel.op())) found.insert(kernel.op());
    }
    return found;
  }();
  return names;
}

}  // namespace forebay::tf
