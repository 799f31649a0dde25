#include "parallel/call_seconds.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include <forebay/operators.h>

#include "call/operator_kinds.h"
#include "sharding/local_call.h"
#include "strategies/strategy.h"

namespace forebay::worker {

namespace {

constexpr int64_t kChannelBlock = 16;

int64_t elements(const wire::Geometry& geometry) { return wire::elements_of(geometry.sizes).value_or(0); }

// A product of matrices, or as many of them as there are indices of the labels that all of its tensors have.
struct MatrixProduct {
  double flops = 0;
  double least_side = 0;
};

// As many multiplications as there are indices of all labels together, as of a sum by Einstein.
MatrixProduct product_of(const LocalCall& call, const Strategy& strategy) {
  std::map<int, int64_t> sizes;
  for (size_t tensor = 0; tensor < call.tensors().size(); ++tensor) {
    for (size_t dim = 0; dim < strategy.tensors[tensor].size(); ++dim) {
      const int label = strategy.tensors[tensor][dim];
      if (label != kUncut) sizes[label] = call.tensors()[tensor]->geometry.sizes[dim];
    }
  }
  const auto has = [](const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); };
  MatrixProduct product{2, std::numeric_limits<double>::infinity()};
  for (const auto& [label, size] : sizes) {
    product.flops *= static_cast<double>(size);
    const auto has_label = [&, one = label](const Labels& labels) { return has(labels, one); };
    const bool is_of_each = std::all_of(strategy.tensors.begin(), strategy.tensors.end(), has_label) && has_label(strategy.results.front().labels);
    if (!is_of_each) product.least_side = std::min(product.least_side, static_cast<double>(size));
  }
  return product;
}

// Each element of what is made is a sum over a filter: all of the weights but for the dimension of its channel. Kernels take channels by blocks.
double flops_of_convolution(const LocalCall& call, bool is_backward) {
  const size_t data = is_backward ? 1 : 0;
  if (call.tensors().size() < data + 2) return 0;
  const auto& weight = call.tensors()[data + 1]->geometry;
  const auto& made = is_backward ? call.tensors()[0]->geometry : call.outputs().front()->geometry;
  if (weight.sizes.size() < 2 || weight.sizes[0] == 0 || weight.sizes[1] == 0) return 0;
  const int64_t channels = weight.sizes[1], in_blocks = (channels + kChannelBlock - 1) / kChannelBlock * kChannelBlock;
  const double filter = static_cast<double>(elements(weight) / weight.sizes[0] / channels * in_blocks), forward = 2.0 * static_cast<double>(elements(made)) * filter;
  if (!is_backward) return forward;
  return forward * static_cast<double>(std::count_if(call.outputs().begin(), call.outputs().begin() + std::min<std::ptrdiff_t>(2, call.outputs().end() - call.outputs().begin()),
                                                     [](const auto* output) { return output->tag == wire::OutputTag::kNew; }));
}

// Two products of each query with each key.
MatrixProduct product_of_attention(const LocalCall& call, bool is_backward) {
  const size_t first = is_backward ? 1 : 0;
  if (call.tensors().size() < first + 2) return {};
  const auto& query = call.tensors()[first]->geometry;
  const auto& key = call.tensors()[first + 1]->geometry;
  if (query.sizes.size() < 2 || key.sizes.size() < 2) return {};
  const int64_t queries = query.sizes[query.sizes.size() - 2], keys = key.sizes[key.sizes.size() - 2], width = query.sizes.back();
  const double forward = 4.0 * static_cast<double>(elements(query)) * static_cast<double>(keys);
  return {is_backward ? 2.5 * forward : forward, static_cast<double>(std::min({queries, keys, width}))};
}

// Of what is compared in windows: all elements of them.
double compared_of(const LocalCall& call, const wire::Template& source) {
  if (source.arguments.size() < 2 || call.outputs().empty()) return 0;
  double window = 1;
  for (const int64_t side : source.arguments[1].list) window *= static_cast<double>(side);
  return window * static_cast<double>(elements(call.outputs().front()->geometry));
}

double seconds_of_product(const MatrixProduct& product, const DeviceRates::Products& rates) {
  if (product.flops == 0) return 0;
  return product.flops / rates.flops_per_s * (1 + rates.half_side / product.least_side);
}

// Beside what reading and writing take.
double seconds_of_arithmetic(const LocalCall& call, const wire::Template& source, const c10::OperatorHandle& op, const DeviceRates& rates) {
  const auto name = wire::local_name(op.schema().name());
  const auto type = call.tensors().empty() ? c10::kFloat : static_cast<c10::ScalarType>(call.tensors().front()->geometry.dtype);
  const auto& products = rates.products_of(type);
  const bool is_backward = name.find("backward") != std::string_view::npos;
  if (begins_with(name, kMatrixProducts)) {
    const auto strategy = strategy_of(source, op);
    return strategy ? seconds_of_product(product_of(call, *strategy), products) : 0;
  }
  if (begins_with(name, kConvolutions)) {
    return flops_of_convolution(call, is_backward) / (products.convolution_flops_per_s > 0 ? products.convolution_flops_per_s : products.flops_per_s);
  }
  if (name.starts_with("_scaled_dot_product")) return seconds_of_product(product_of_attention(call, is_backward), products);
  if (name.starts_with("max_pool") && !is_backward) return rates.compared_per_s > 0 ? compared_of(call, source) / rates.compared_per_s : 0;
  if (rates.functions_per_s > 0 && takes_function(name)) {
    int64_t most = 0;
    for (const auto* tensor : call.tensors()) most = std::max(most, elements(tensor->geometry));
    return static_cast<double>(most) / rates.functions_per_s;
  }
  return 0;
}

// What is written in place is read, and then written once more.
double bytes_of(const LocalCall& call, const wire::Template& source, const c10::OperatorHandle& op) {
  double bytes = 0;
  for (const auto* tensor : call.tensors()) bytes += static_cast<double>(elements(tensor->geometry) * item_bytes_of(tensor->geometry));
  for (const auto* output : call.outputs()) {
    if (output->tag == wire::OutputTag::kNew) bytes += static_cast<double>(output->storage_bytes);
  }
  const auto note_written = [&](const wire::Argument& argument) {
    if (argument.tag == wire::Tag::kTensor) bytes += static_cast<double>(elements(argument.geometry) * item_bytes_of(argument.geometry));
  };
  const auto& arguments = op.schema().arguments();
  for (size_t place = 0; place < std::min(arguments.size(), source.arguments.size()); ++place) {
    if (arguments[place].alias_info() == nullptr || !arguments[place].alias_info()->isWrite()) continue;
    note_written(source.arguments[place]);
    std::for_each(source.arguments[place].items.begin(), source.arguments[place].items.end(), note_written);
  }
  return bytes;
}

}  // namespace

double seconds_of(const wire::Template& source, const c10::OperatorHandle& op, const DeviceRates& rates) {
  const LocalCall call(source);
  return rates.call_s + std::max(seconds_of_arithmetic(call, source, op, rates), bytes_of(call, source, op) / rates.bytes_per_s);
}

}  // namespace forebay::worker
