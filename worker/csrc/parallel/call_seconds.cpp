#include "parallel/call_seconds.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include <forebay/operators.h>

#include "sharding/local_call.h"
#include "strategies/strategy.h"

namespace forebay::worker {

namespace {

int64_t elements(const wire::Geometry& geometry) { return wire::elements_of(geometry.sizes).value_or(0); }

bool begins_with(std::string_view name, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view one) { return name.substr(0, one.size()) == one; });
}

// As many multiplications as there are indices of all labels together, as of a sum by Einstein.
double flops_of_product(const LocalCall& call, const Strategy& strategy) {
  std::map<int, int64_t> sizes;
  for (size_t tensor = 0; tensor < call.tensors().size(); ++tensor) {
    for (size_t dim = 0; dim < strategy.tensors[tensor].size(); ++dim) {
      const int label = strategy.tensors[tensor][dim];
      if (label != kUncut) sizes[label] = call.tensors()[tensor]->geometry.sizes[dim];
    }
  }
  double flops = 2;
  for (const auto& [label, size] : sizes) flops *= static_cast<double>(size);
  return flops;
}

// Each element of what is made is a sum over a filter: all of the weights but for the dimension of its channel.
double flops_of_convolution(const LocalCall& call, bool is_backward) {
  const size_t data = is_backward ? 1 : 0;
  if (call.tensors().size() < data + 2) return 0;
  const auto& weight = call.tensors()[data + 1]->geometry;
  const auto& made = is_backward ? call.tensors()[0]->geometry : call.outputs().front()->geometry;
  if (weight.sizes.empty() || weight.sizes[0] == 0) return 0;
  const double forward = 2.0 * static_cast<double>(elements(made)) * static_cast<double>(elements(weight) / weight.sizes[0]);
  return is_backward ? 2 * forward : forward;
}

// Two products of each query with each key.
double flops_of_attention(const LocalCall& call, bool is_backward) {
  const size_t first = is_backward ? 1 : 0;
  if (call.tensors().size() < first + 2) return 0;
  const auto& query = call.tensors()[first]->geometry;
  const auto& key = call.tensors()[first + 1]->geometry;
  if (query.sizes.size() < 2 || key.sizes.size() < 2) return 0;
  const double forward = 4.0 * static_cast<double>(elements(query)) * static_cast<double>(key.sizes[key.sizes.size() - 2]);
  return is_backward ? 2.5 * forward : forward;
}

// Of products, convolutions and attention; 0 of what reads and writes alone takes time.
double flops_of(const LocalCall& call, const wire::Template& source, const c10::OperatorHandle& op) {
  const auto name = wire::local_name(op.schema().name());
  const bool is_backward = name.find("backward") != std::string_view::npos;
  if (begins_with(name, {"mm", "addmm", "bmm", "baddbmm", "_addmm", "addmv", "addbmm"})) {
    const auto strategy = strategy_of(source, op);
    return strategy ? flops_of_product(call, *strategy) : 0;
  }
  if (begins_with(name, {"convolution", "_convolution"})) return flops_of_convolution(call, is_backward);
  if (begins_with(name, {"_scaled_dot_product"})) return flops_of_attention(call, is_backward);
  return 0;
}

}  // namespace

double seconds_of(const wire::Template& source, const c10::OperatorHandle& op, const DeviceRates& rates) {
  const LocalCall call(source);
  double bytes = 0;
  for (const auto* tensor : call.tensors()) bytes += static_cast<double>(elements(tensor->geometry) * item_bytes_of(tensor->geometry));
  for (const auto* output : call.outputs()) {
    if (output->tag == wire::OutputTag::kNew) bytes += static_cast<double>(output->storage_bytes);
  }
  const auto type = call.tensors().empty() ? c10::kFloat : static_cast<c10::ScalarType>(call.tensors().front()->geometry.dtype);
  return rates.call_s + std::max(flops_of(call, source, op) / rates.flops_per_s_of(type), bytes / rates.bytes_per_s);
}

}  // namespace forebay::worker
