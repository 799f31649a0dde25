#include "strategies/strategy.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include <forebay/operators.h>

namespace forebay::worker {

namespace {

void collect_tensors(const std::vector<wire::Argument>& arguments, std::vector<const wire::Geometry*>& tensors) {
  for (const auto& argument : arguments) {
    if (argument.tag == wire::Tag::kTensor) tensors.push_back(&argument.geometry);
    collect_tensors(argument.items, tensors);
  }
}

void collect_outputs(const std::vector<wire::Output>& outputs, std::vector<const wire::Output*>& all) {
  for (const auto& output : outputs) {
    if (output.tag == wire::OutputTag::kList) collect_outputs(output.items, all);
    else all.push_back(&output);
  }
}

std::string_view plain_name(const c10::OperatorHandle& op) {
  auto name = wire::local_name(op.schema().name());
  if (name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

std::unordered_map<std::string_view, StrategyRule> all_rules() {
  std::unordered_map<std::string_view, StrategyRule> rules;
  for (const auto* some : {&elementwise_rules(), &reduction_rules(), &product_rules(), &dimension_rules(), &indexing_rules(), &window_rules(), &normalization_rules(),
                           &loss_rules(), &attention_rules(), &recurrent_rules()}) {
    for (const auto& [name, rule] : *some) {
      if (!rules.emplace(name, rule).second) throw std::logic_error("two rules divide " + std::string(name));
    }
  }
  return rules;
}

const std::unordered_map<std::string_view, StrategyRule>& rules_by_name() {
  static const auto rules = all_rules();
  return rules;
}

StrategyRule rule_for(const c10::OperatorHandle& op) {
  const auto& rules = rules_by_name();
  const auto found = rules.find(plain_name(op));
  if (found != rules.end()) return found->second;
  return op.hasTag(at::Tag::pointwise) ? &elementwise : nullptr;
}

}  // namespace

StrategyDraft::StrategyDraft(const wire::Template& call, const c10::OperatorHandle& op) : call_(call), schema_(op.schema()), name_(plain_name(op)) {
  collect_tensors(call.arguments, tensors_);
  collect_outputs(call.outputs, outputs_);
  for (const auto* geometry : tensors_) strategy_.tensors.emplace_back(geometry->sizes.size(), kUncut);
  strategy_.results.resize(outputs_.size());
}

std::optional<size_t> StrategyDraft::place_of(std::string_view name) const {
  const auto& arguments = schema_.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(), [&](const auto& argument) { return argument.name() == name; });
  if (found == arguments.end()) return std::nullopt;
  return static_cast<size_t>(found - arguments.begin());
}

const wire::Argument& StrategyDraft::argument(std::string_view name) const {
  const auto place = place_of(name);
  if (!place) throw std::logic_error("a rule for " + schema_.name() + " asks for its " + std::string(name));
  return call_.arguments[*place];
}

bool StrategyDraft::has(std::string_view name) const {
  const auto place = place_of(name);
  return place && call_.arguments[*place].tag != wire::Tag::kNone;
}

bool StrategyDraft::is_tensor(std::string_view name) const { return has(name) && argument(name).tag == wire::Tag::kTensor; }

const std::vector<int64_t>& StrategyDraft::sizes(std::string_view name) const { return argument(name).geometry.sizes; }

int64_t StrategyDraft::integer(std::string_view name) const { return argument(name).integer; }

bool StrategyDraft::flag(std::string_view name) const { return argument(name).flag; }

std::vector<int64_t> StrategyDraft::integers(std::string_view name) const {
  if (!has(name)) return {};
  const auto& one = argument(name);
  return one.tag == wire::Tag::kInt ? std::vector<int64_t>{one.integer} : one.list;
}

std::vector<size_t> StrategyDraft::numbers(std::string_view name) const {
  const auto place = place_of(name);
  if (!place) return {};
  std::vector<const wire::Geometry*> before, own;
  collect_tensors({call_.arguments.begin(), call_.arguments.begin() + static_cast<std::ptrdiff_t>(*place)}, before);
  collect_tensors({call_.arguments[*place]}, own);
  std::vector<size_t> numbers(own.size());
  for (size_t index = 0; index < own.size(); ++index) numbers[index] = before.size() + index;
  return numbers;
}

size_t StrategyDraft::dimension(int64_t dim, size_t rank) {
  const auto count = static_cast<int64_t>(std::max<size_t>(rank, 1));
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

void StrategyDraft::label(std::string_view name, const Labels& labels) {
  for (const size_t tensor : numbers(name)) label(tensor, labels);
}

void StrategyDraft::result(size_t output, Labels labels, Merge merge) {
  if (output < strategy_.results.size()) strategy_.results[output] = {std::move(labels), merge};
}

void StrategyDraft::results(const Labels& labels, Merge merge) {
  for (size_t output = 0; output < outputs_.size(); ++output) result(output, labels, merge);
}

void StrategyDraft::size(std::string_view name, size_t position, int label) { strategy_.sizes.push_back({place_of(name).value(), position, label}); }

Labels leading_labels(size_t cut, size_t rank) {
  Labels labels(rank, kUncut);
  for (size_t dim = 0; dim < std::min(cut, rank); ++dim) labels[dim] = static_cast<int>(dim);
  return labels;
}

Labels all_but(const std::vector<size_t>& uncut, size_t rank) {
  Labels labels = leading_labels(rank, rank);
  for (const size_t dim : uncut) {
    if (dim < rank) labels[dim] = kUncut;
  }
  return labels;
}

std::optional<Strategy> strategy_of(const wire::Template& call, const c10::OperatorHandle& op) {
  const StrategyRule rule = rule_for(op);
  StrategyDraft draft(call, op);
  if (rule == nullptr || !rule(draft)) return std::nullopt;
  return draft.take();
}

}  // namespace forebay::worker
