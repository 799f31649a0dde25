#include "host_notes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "device.h"
#include "host_reasons.h"
#include "kernels.h"
#include "placement.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/eager/eager_op_rewrite_registry.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace forebay::tf {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeVector;
using tensorflow::EagerOperation;

constexpr char kVariable[] = "FOREBAY_TENSORFLOW_NOTES";
constexpr char kCpu[] = "CPU";
constexpr int kLast = 1000;
constexpr int64_t kLeastBytes = 1024;  // that are worth a figure

std::string size_of(int64_t bytes) {
  char words[64];
  const bool is_large = bytes >= 1 << 20;
  std::snprintf(words, sizeof words, "%.1f %s", static_cast<double>(bytes) / (is_large ? 1 << 20 : 1 << 10), is_large ? "MiB" : "KiB");
  return words;
}

bool is_host(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName name;
  return tensorflow::DeviceNameUtils::ParseFullName(device, &name) && name.has_type && name.type == kCpu;
}

// Whether it computes on this machine, placed there: some of TensorFlow's kernels for any device do so, too.
bool is_here(const std::string& op, const std::string& device) { return is_host(device) || why_on_host(op) != nullptr; }

// Of types that lie in a device's memory: numbers of 32 bits do not.
bool has_numbers(const DataTypeVector& types) {
  return std::any_of(types.begin(), types.end(), [](DataType type) {
    return type != tensorflow::DT_INT32 && (tensorflow::DataTypeIsFloating(type) || tensorflow::DataTypeIsComplex(type) || tensorflow::DataTypeIsInteger(type));
  });
}

bool has_fractions(const DataTypeVector& types) {
  return std::any_of(types.begin(), types.end(), [](DataType type) { return tensorflow::DataTypeIsFloating(type) || tensorflow::DataTypeIsComplex(type); });
}

// Words, files, variables and lists are on this machine in any program.
bool has_things(const DataTypeVector& types) {
  return std::any_of(types.begin(), types.end(), [](DataType type) { return type == tensorflow::DT_STRING || type == tensorflow::DT_RESOURCE || type == tensorflow::DT_VARIANT; });
}

// Why an operator is on this machine, where that is worth a line; else nullptr.
const char* why(const tensorflow::OpDef& op, const DataTypeVector& types) {
  if (!has_numbers(types) || is_passed_on(op.name())) return nullptr;
  if (const char* reason = why_on_host(op.name()); reason != nullptr) return reason;
  if (has_program(op.name())) {
    const auto& left = types_on_host(op.name());
    const bool is_left = std::any_of(types.begin(), types.end(), [&](DataType type) { return left.count(type) != 0; });
    return is_left ? why_of_types(op.name()) : has_things(types) ? nullptr : "what it makes are numbers of 32 bits, which are made there";
  }
  return op.is_stateful() || has_things(types) || !has_fractions(types) ? nullptr : "XLA has no program for it";
}

class Notes {
 public:
  // What is found of an operator with such arguments, the first time. Bytes that came from a device are known one by one alone: 0.
  void take(tensorflow::NodeDef node, int64_t bytes) {
    const tensorflow::OpDef* op = nullptr;
    if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) return;
    tensorflow::AddDefaultsToNodeDef(*op, &node);
    DataTypeVector types, made;
    if (!tensorflow::InOutTypesForNode(node, *op, &types, &made).ok()) return;
    types.insert(types.end(), made.begin(), made.end());
    if (const char* reason = why(*op, types); reason != nullptr) tell(node.op(), reason, bytes);
  }

  // Whether an operator of these types comes for the first time.
  bool is_new(const std::string& op, const DataTypeVector& inputs) {
    std::string key = op;
    for (const auto type : inputs) key.push_back(static_cast<char>(type));
    const std::lock_guard lock(mutex_);
    return told_.count(op) == 0 && seen_.insert(key).second;
  }

 private:
  void tell(const std::string& op, const char* reason, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool is_first = told_.empty();
    if (!told_.insert(op).second) return;
    const std::string size = bytes < kLeastBytes ? "" : ", " + size_of(bytes) + " of arguments this time";
    std::fprintf(stderr, "forebay: TensorFlow carries out %s on this machine: %s. Each call copies its tensors from the virtual device and back%s.%s\n", op.c_str(), reason, size.c_str(),
                 is_first ? " This is said once for each operator; FOREBAY_TENSORFLOW_NOTES=off leaves it out." : "");
  }

  std::mutex mutex_;
  std::set<std::string> told_;  // operators
  std::set<std::string> seen_;  // with the types of their arguments
};

Notes& notes() {
  static auto* made = new Notes;  // for good: TensorFlow's threads outlive main()
  return *made;
}

thread_local bool is_free = false;  // the operator that this thread is about to place

class BeforePlacement : public tensorflow::EagerOpRewrite {
 public:
  BeforePlacement() : EagerOpRewrite("forebay: before placement", __FILE__, "") {}
  absl::Status Run(EagerOperation* op, std::unique_ptr<EagerOperation>*) override {
    is_free = !op->is_function() && !is_host(op->DeviceName());
    return absl::OkStatus();
  }
};

class AfterPlacement : public tensorflow::EagerOpRewrite {
 public:
  AfterPlacement() : EagerOpRewrite("forebay: after placement", __FILE__, "") {}
  absl::Status Run(EagerOperation* op, std::unique_ptr<EagerOperation>*) override {
    if (is_free && are_devices_made() && is_here(op->Name(), op->DeviceName())) examine(*op);
    return absl::OkStatus();
  }

 private:
  static void examine(EagerOperation& op) {
    DataTypeVector types;
    int64_t bytes = 0;
    for (auto* input : op.Inputs()) {
      absl::Status status;
      types.push_back(input->DataType());
      const char* device = input->DeviceName(&status);
      int64_t elements = 0;
      if (status.ok() && !is_host(device) && input->NumElements(&elements).ok()) bytes += elements * tensorflow::DataTypeSize(input->DataType());
    }
    if (notes().is_new(op.Name(), types)) notes().take(op.MutableAttrs()->BuildNodeDef(), bytes);
  }
};

class AfterPlacementOfGraph : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    const auto* device = options.default_function_device;
    if (options.graph == nullptr || !are_devices_made() || (device != nullptr && is_host(device->name()))) return absl::OkStatus();
    for (const auto* node : (*options.graph)->op_nodes()) {
      if (!is_here(node->type_string(), node->assigned_device_name()) || (is_host(node->requested_device()) && !is_placed_here(*node))) continue;
      if (notes().is_new(node->type_string(), node->input_types())) notes().take(node->def(), 0);
    }
    return absl::OkStatus();
  }
};

}  // namespace

void register_host_notes() {
  if (const char* wanted = std::getenv(kVariable); wanted != nullptr && std::string(wanted) == "off") return;
  auto* eager = tensorflow::EagerOpRewriteRegistry::Global();
  eager->Register(tensorflow::EagerOpRewriteRegistry::PRE_EXECUTION, kLast, std::make_unique<BeforePlacement>());
  eager->Register(tensorflow::EagerOpRewriteRegistry::POST_PLACEMENT, kLast, std::make_unique<AfterPlacement>());
  tensorflow::OptimizationPassRegistry::Global()->Register(tensorflow::OptimizationPassRegistry::POST_PLACEMENT, kLast, std::make_unique<AfterPlacementOfGraph>());
}

}  // namespace forebay::tf
