#include "kernels.h"

#include <algorithm>
#include <map>
#include <memory>

#include "device.h"
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

// XLA would compute these, and the host does: results whose sizes depend on values; random numbers, which are TensorFlow's own bits there; what is an error for
// some values, as of a matrix that cannot be inverted or a number that is none, or has another value there, as of infinity; what ends the process where an
// argument is out of its range; and what is meant for other programs of XLA.
const Names kOnHost = {
    "AdjustContrastv2", "AdjustHue", "AdjustSaturation", "ApproximateEqual", "Betainc", "Bincount", "CheckNumerics", "CheckNumericsV2", "Cholesky",
    "ClipByValue", "CollectiveReduceV2", "Cross", "CumulativeLogsumexp", "DataFormatDimMap", "DenseBincount", "DynamicPartition", "EluGrad",
    "ExtractImagePatches", "HSVToRGB", "Igamma", "IgammaGradA", "Igammac", "InTopK", "InTopKV2", "InvertPermutation", "LRN", "LRNGrad", "LeftShift",
    "LinSpace", "ListDiff", "LowerBound", "MatrixDiagPartV2", "MatrixDiagPartV3", "MatrixInverse", "MatrixSetDiagV2", "MatrixSetDiagV3", "MatrixSolve",
    "MatrixTriangularSolve", "Multinomial", "Ndtri", "ParameterizedTruncatedNormal", "Polygamma", "Qr", "RGBToHSV", "RandomGammaGrad", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "RemoteCall", "ResizeBilinear", "ResizeBilinearGrad", "ResizeNearestNeighbor",
    "ResizeNearestNeighborGrad", "ReverseSequence", "RightShift", "SelfAdjointEigV2", "SeluGrad", "SparseToDense", "SqrtGrad", "StochasticCastToInt", "Svd",
    "SymbolicGradient", "TridiagonalSolve", "TruncatedNormal", "Unique", "UniqueV2", "UpperBound", "Where", "Zeta"};
const char* const kFamiliesOnHost[] = {"FakeQuant", "QuantizeAndDequantize", "Stateful", "StatelessMultinomial", "StatelessParameterized", "StatelessRandom", "StatelessTruncated", "TensorArray", "TensorList", "Uniform", "Xla"};

// Of these, they look at sizes alone.
const Names kMeasured = {"OnesLike", "ZerosLike"};

// Their operators are on the host together, also those that look at no element.
const char* const kContainers[] = {"EmptyTensorList", "FIFOQueue", "Queue", "Stack", "TensorList"};

template <size_t kCount>
bool is_of(const char* const (&families)[kCount], const std::string& name) {
  return std::any_of(std::begin(families), std::end(families), [&](const char* family) { return name.rfind(family, 0) == 0; });
}

bool is_compiled(const std::string& name) { return kPassedOn.count(name) + kOnHost.count(name) == 0 && !is_of(kFamiliesOnHost, name); }

const OpDef* find_operator(const std::string& name) {
  const OpDef* found = nullptr;
  return tensorflow::OpRegistry::Global()->LookUpOpDef(name, &found).ok() ? found : nullptr;
}

using Types = std::set<DataType>;

// Of complex numbers on a branch cut, XLA's and TensorFlow's results lie on different sides, and its slopes are not conjugated; quotients in half precision are
// rounded another way, and those of whole numbers by zero are errors; what is no number is the largest one to XLA, and zero
// is more than its negative.
const Types kComplex = {tensorflow::DT_COMPLEX64, tensorflow::DT_COMPLEX128}, kHalves = {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16};
const Types kFloats = {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16, tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE};
const Types kWhole = {tensorflow::DT_INT8,  tensorflow::DT_INT16,  tensorflow::DT_INT32,  tensorflow::DT_INT64,
                      tensorflow::DT_UINT8, tensorflow::DT_UINT16, tensorflow::DT_UINT32, tensorflow::DT_UINT64};

Types together(Types one, const Types& other) {
  one.insert(other.begin(), other.end());
  return one;
}

const std::map<std::string, Types> kTypesOnHost = {{"Acos", kComplex},
                                                   {"Acosh", kComplex},
                                                   {"ArgMax", kFloats},
                                                   {"ArgMin", kFloats},
                                                   {"Asin", kComplex},
                                                   {"Asinh", kComplex},
                                                   {"Div", kWhole},
                                                   {"FloorDiv", together(kHalves, kWhole)},
                                                   {"FloorMod", together(kHalves, kWhole)},
                                                   {"Mod", kWhole},
                                                   {"Pow", together(kComplex, kWhole)},
                                                   {"ReciprocalGrad", kComplex},
                                                   {"Rsqrt", kComplex},
                                                   {"RsqrtGrad", kComplex},
                                                   {"Sqrt", kComplex},
                                                   {"TopK", kFloats},
                                                   {"TopKV2", kFloats},
                                                   {"TruncateDiv", kWhole},
                                                   {"TruncateMod", kWhole}};

// Whether other types are left.
template <typename Left>
bool leave_out(KernelDef::AttrConstraint& constraint, const Left& is_left) {
  auto& types = *constraint.mutable_allowed_values()->mutable_list()->mutable_type();
  types.erase(std::remove_if(types.begin(), types.end(), [&](int type) { return is_left(static_cast<DataType>(type)); }), types.end());
  return !types.empty();
}

void leave_types_to_host(KernelDef& kernel) {
  const auto found = kTypesOnHost.find(kernel.op());
  if (found == kTypesOnHost.end()) return;
  for (auto& constraint : *kernel.mutable_constraint()) leave_out(constraint, [&](DataType type) { return found->second.count(type) != 0; });
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

void register_compiled() {
  for (const KernelDef* found : tensorflow::XlaOpRegistry::DeviceKernels(tensorflow::DEVICE_CPU_XLA_JIT, false)) {
    const OpDef* op = find_operator(found->op());
    if (op == nullptr || !is_compiled(found->op())) continue;
    auto kernel = std::make_unique<KernelDef>(*found);
    if (!leave_int32_to_host(*op, *kernel)) continue;
    leave_types_to_host(*kernel);
    for (const auto& constant : *tensorflow::XlaOpRegistry::CompileTimeConstantInputArgNames(found->op())) kernel->add_host_memory_arg(constant);
    kernel->set_priority(1);  // before a refusal
    if (found->op() == "Cast") {
      auto other = std::make_unique<KernelDef>(*kernel);
      leave_rounding_to_host(*kernel, *other);
      enter(std::move(other), "XlaCompileOnDemandOp", new_compiled);
    }
    enter(std::move(kernel), "XlaCompileOnDemandOp", new_compiled);
  }
}

class Refused : public OpKernel {
 public:
  explicit Refused(OpKernelConstruction* made) : OpKernel(made) {}
  void Compute(OpKernelContext* asked) override {
    asked->CtxFailure(absl::UnimplementedError("the operator " + type_string() + " is not served on the virtual device; place it with tf.device(\"/CPU:0\")"));
  }
};

OpKernel* new_refused(OpKernelConstruction* made) { return new Refused(made); }

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
    if (op != nullptr && (computes(kernel, *op) || is_of(kContainers, kernel.op()))) kernels.push_back(kernel);
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

void register_kernels() {
  register_refused();
  register_compiled();
  register_assigned();
}

const Names& host_operators() {
  static const Names names = [] {
    Names found;
    for (const auto& kernel : unfit_kernels()) {
      if (!is_compiled(kernel.op()) || is_of(kContainers, kernel.op())) found.insert(kernel.op());
    }
    return found;
  }();
  return names;
}

}  // namespace forebay::tf
