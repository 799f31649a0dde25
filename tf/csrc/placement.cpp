#include "placement.h"

#include <algorithm>
#include <memory>

#include "kernels.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"

namespace forebay::tf {
namespace {

constexpr char kHost[] = "/device:CPU:0";
constexpr char kMark[] = "_forebay_on_host";
constexpr int kLast = 1000;  // after calls and loops are made part of the graph

// Whether it passes lists of tensors on, which are on the host.
bool passes_lists(const tensorflow::Node& node) {
  const auto& types = node.output_types();
  return node.num_inputs() > 0 && !types.empty() && std::all_of(types.begin(), types.end(), [](auto type) { return type == tensorflow::DT_VARIANT; });
}

class HostOperators : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr) return absl::OkStatus();
    const auto& names = host_operators();
    for (auto* node : (*options.graph)->op_nodes()) {
      if (names.count(node->type_string()) + passes_lists(*node) == 0) continue;
      tensorflow::DeviceNameUtils::ParsedName asked;
      if (!tensorflow::DeviceNameUtils::ParseFullName(node->requested_device(), &asked) || asked.type != tensorflow::DEVICE_CPU) node->AddAttr(kMark, true);
      node->set_requested_device(kHost);
    }
    return absl::OkStatus();
  }
};

}  // namespace

bool is_placed_here(const tensorflow::Node& node) { return node.attrs().Find(kMark) != nullptr; }

void register_placement() {
  tensorflow::OptimizationPassRegistry::Global()->Register(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, kLast, std::make_unique<HostOperators>());
}

}  // namespace forebay::tf
