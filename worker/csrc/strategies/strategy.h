// How an operator's call may be divided among devices, whatever the values of its tensors: rules by operator, as DTensor's sharding strategies.
//
// A rule gives labels to the dimensions of a call's tensors. Dimensions with the same label run along the same index: the call, given the slices of
// all tensors that have the label at some of its indices, makes the slices of the results that have it. A result without the label is merged from
// what the parts make, as the rule says. StrategyRules read the template alone (schema, geometries, integers, flags), never values or numbers that a call binds.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

namespace forebay::worker {

// One label for each dimension of a tensor. A label stands at most once in a tensor.
using Labels = std::vector<int>;
constexpr int kUncut = -1;  // a dimension that cannot be divided

// What makes a result without the divided label of the parts' results. kNone: nothing does, so the call is not divided by that label. kSame: each
// part makes the whole's result. kMean: parts are of equal size. kMax and kMin keep NaN.
enum class Merge : uint8_t { kNone, kSame, kSum, kMean, kMax, kMin };

struct ResultStrategy {
  Labels labels;
  Merge merge = Merge::kNone;
};

// An integer among a call's arguments, or an item of a list of integers, that is the size of a labelled dimension.
struct SizeArgument {
  size_t argument;
  size_t position;  // 0 for an integer that is no list's
  int label;
};

struct Strategy {
  std::vector<Labels> tensors;          // of the tensor arguments in their order, those in lists included
  std::vector<ResultStrategy> results;  // of the outputs in their order, those in lists included
  std::vector<SizeArgument> sizes;
  std::optional<size_t> added_once;  // where results are sums of the parts': the argument that is the factor of what is added, by one of the parts alone
  bool is_worth_turning = false;  // what it is given is turned into rows by which it is divided, before it is carried out whole
  std::optional<size_t> dropout;  // of an operator that draws: the argument that is its probability, and must be 0, so that nothing is drawn
};

// A strategy in the making; all dimensions are uncut at first. Arguments are found by the names of the schema.
class StrategyDraft {
 public:
  StrategyDraft(const wire::Template& call, const c10::OperatorHandle& op);

  std::string_view name() const { return name_; }  // of the operator, without namespace, overload and the underscore of one in place
  // Whether there is such an argument, and it is not none.
  bool has(std::string_view name) const;
  bool is_tensor(std::string_view name) const;
  const std::vector<int64_t>& sizes(std::string_view name) const;  // of a tensor
  size_t rank(std::string_view name) const { return sizes(name).size(); }
  int64_t integer(std::string_view name) const;
  bool flag(std::string_view name) const;
  // The integers of a list, or of an integer alone; none of what is left out.
  std::vector<int64_t> integers(std::string_view name) const;
  const wire::Argument& argument(std::string_view name) const;
  // Of all tensor arguments, in their order.
  const std::vector<const wire::Geometry*>& tensors() const { return tensors_; }
  // Numbers of the tensors of an argument, which may be a list.
  std::vector<size_t> numbers(std::string_view name) const;
  const std::vector<const wire::Output*>& outputs() const { return outputs_; }
  // A dimension as an index from the front; 0 of a tensor without dimensions.
  static size_t dimension(int64_t dim, size_t rank);

  void label(std::string_view name, const Labels& labels);
  void label(size_t tensor, Labels labels) { strategy_.tensors[tensor] = std::move(labels); }
  void result(size_t output, Labels labels, Merge merge = Merge::kNone);
  // All outputs alike.
  void results(const Labels& labels, Merge merge = Merge::kNone);
  void size(std::string_view name, size_t position, int label);
  void added_once(std::string_view name) { strategy_.added_once = place_of(name); }
  void turn() { strategy_.is_worth_turning = true; }
  void dropout(std::string_view name) { strategy_.dropout = place_of(name); }
  Strategy take() { return std::move(strategy_); }

 private:
  std::optional<size_t> place_of(std::string_view name) const;

  const wire::Template& call_;
  const c10::FunctionSchema& schema_;
  std::string_view name_;
  std::vector<const wire::Geometry*> tensors_;
  std::vector<const wire::Output*> outputs_;
  Strategy strategy_;
};

// Labels from 0 on for the first `cut` of so many dimensions.
Labels leading_labels(size_t cut, size_t rank);
// Labels from 0 on for all dimensions but these.
Labels all_but(const std::vector<size_t>& uncut, size_t rank);

// Fills a draft in; false where the call has no strategy.
using StrategyRule = bool (*)(StrategyDraft& draft);
struct NamedStrategyRule {
  std::string_view name;  // of the operator, as StrategyDraft::name
  StrategyRule rule;
};
using StrategyRules = std::initializer_list<NamedStrategyRule>;

// The rules of each kind of operator, a file each.
const StrategyRules& elementwise_rules();
const StrategyRules& reduction_rules();
const StrategyRules& product_rules();
const StrategyRules& dimension_rules();
const StrategyRules& indexing_rules();
const StrategyRules& window_rules();
const StrategyRules& normalization_rules();
const StrategyRules& loss_rules();
const StrategyRules& attention_rules();
const StrategyRules& recurrent_rules();

// Every tensor takes part element by element, and those with fewer or single elements along a dimension are broadcast.
bool elementwise(StrategyDraft& draft);

// None where no rule divides the call.
std::optional<Strategy> strategy_of(const wire::Template& call, const c10::OperatorHandle& op);

}  // namespace forebay::worker
