#include "call/ranges.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

namespace forebay::worker {

namespace {

using wire::Tag;

constexpr int64_t kFetchedMax = 4096;  // numbers that are copied to the host sooner than the device looks at them

// What an operator's arguments lead into.
enum class RangeRule {
  kAlongDim,      // `index`: into `self` along `dim`
  kAlongDimBoth,  // as kAlongDim, or from its end, below 0
  kIndices,       // each of `indices`: into a dimension of `self`, from either end
  kPlaces,        // `index`: into all of `self`, from either end
  kRows,          // `indices`: into the rows of `weight` or `self`, or `num_weights` of them
  kClasses,       // `target`: into the classes of `self`, or `ignore_index`
  kProbabilities, // `p`, else `self`: from 0 to 1
};

struct Guarded {
  std::string_view name;  // as base_name
  RangeRule rule;
};

// Operators of which PyTorch's kernels for CUDA and HIP assert what those for the host throw an error for.
constexpr Guarded kGuardedOperators[] = {
    {"gather", RangeRule::kAlongDim},
    {"scatter", RangeRule::kAlongDim},
    {"scatter_add", RangeRule::kAlongDim},
    {"scatter_reduce", RangeRule::kAlongDim},
    {"index_select", RangeRule::kAlongDim},
    {"index_add", RangeRule::kAlongDim},
    {"index_copy", RangeRule::kAlongDim},
    {"index_reduce", RangeRule::kAlongDim},
    {"index_fill", RangeRule::kAlongDimBoth},
    {"index", RangeRule::kIndices},
    {"index_put", RangeRule::kIndices},
    {"_index_put_impl", RangeRule::kIndices},
    {"take", RangeRule::kPlaces},
    {"put", RangeRule::kPlaces},
    {"embedding", RangeRule::kRows},
    {"embedding_dense_backward", RangeRule::kRows},
    {"embedding_renorm", RangeRule::kRows},
    {"_embedding_bag", RangeRule::kRows},
    {"_embedding_bag_forward_only", RangeRule::kRows},
    {"_embedding_bag_dense_backward", RangeRule::kRows},
    {"nll_loss_forward", RangeRule::kClasses},
    {"nll_loss_backward", RangeRule::kClasses},
    {"nll_loss2d_forward", RangeRule::kClasses},
    {"nll_loss2d_backward", RangeRule::kClasses},
    {"binary_cross_entropy", RangeRule::kProbabilities},
    {"bernoulli", RangeRule::kProbabilities},
};

// Operators that make indices: their output of this number leads into their first argument, along `dim`, or into all of it.
struct Maker {
  std::string_view name;
  size_t output;
};
constexpr Maker kMakers[] = {{"argmax", 0}, {"argmin", 0}, {"max", 1}, {"min", 1}, {"sort", 1}, {"topk", 1}};

size_t tensors_in(const ArgumentPlan& argument) {
  if (argument.tag == Tag::kTensor || argument.tag == Tag::kScalarTensor || argument.tag == Tag::kNone) return 1;
  size_t count = 0;
  for (const auto& item : argument.items) count += tensors_in(item);
  return argument.tag == Tag::kTensorList || argument.tag == Tag::kSparse ? count : 0;
}

// The arguments of one plan, by name.
class Arguments {
 public:
  explicit Arguments(const Plan& plan) : plan_(plan) {}

  std::optional<size_t> index_of(const char* name) const {
    const auto found = plan_.op.schema().argumentIndexWithName(name);
    return found ? std::optional(static_cast<size_t>(*found)) : std::nullopt;
  }
  const ArgumentPlan* named(const char* name) const {
    const auto index = index_of(name);
    return index ? &plan_.arguments[*index] : nullptr;
  }
  const Layout* layout(const char* name) const {
    const ArgumentPlan* argument = named(name);
    return argument != nullptr && argument->tag == Tag::kTensor ? argument->layout.get() : nullptr;
  }
  std::optional<int64_t> number(const char* name) const {
    const ArgumentPlan* argument = named(name);
    return argument != nullptr && argument->tag == Tag::kInt ? std::optional(argument->prototype.toInt()) : std::nullopt;
  }
  // Of all tensor arguments, the number of this one's first.
  size_t first_tensor(size_t argument) const {
    size_t count = 0;
    for (size_t index = 0; index < argument; ++index) count += tensors_in(plan_.arguments[index]);
    return count;
  }

 private:
  const Plan& plan_;
};

// A scalar has one place along each dimension that it is said to have; -1 where there is no such dimension.
int64_t size_along(const Layout& layout, int64_t dim) {
  const auto rank = static_cast<int64_t>(layout.sizes.size());
  if (rank == 0) return 1;
  return dim < -rank || dim >= rank ? -1 : layout.sizes[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
}

bool is_index(const ArgumentPlan& argument) {
  return argument.tag == Tag::kTensor && argument.layout->numel > 0 && (argument.layout->dtype == c10::kLong || argument.layout->dtype == c10::kInt);
}

class Noter {
 public:
  explicit Noter(const Plan& plan) : plan_(plan), arguments_(plan) {}

  std::vector<NumberRange> ranges(RangeRule rule) {
    note(rule);
    return std::move(ranges_);
  }

 private:
  void note(RangeRule rule) {
    const Layout* self = arguments_.layout("self");
    switch (rule) {
      case RangeRule::kAlongDim:
      case RangeRule::kAlongDimBoth:
        if (const auto dim = arguments_.number("dim"); self != nullptr && dim) add("index", size_along(*self, *dim), rule == RangeRule::kAlongDimBoth);
        return;
      case RangeRule::kPlaces:
        if (self != nullptr) add("index", self->numel, true);
        return;
      case RangeRule::kIndices:
        if (self != nullptr) note_indices(*self);
        return;
      case RangeRule::kRows: {
        const Layout* table = self != nullptr ? self : arguments_.layout("weight");
        const auto rows = arguments_.number("num_weights");
        if (rows || (table != nullptr && !table->sizes.empty())) add("indices", rows ? *rows : table->sizes.front(), false);
        return;
      }
      case RangeRule::kClasses:
        if (self != nullptr && !self->sizes.empty()) add("target", self->sizes[self->sizes.size() > 1], false, arguments_.number("ignore_index"));
        return;
      case RangeRule::kProbabilities:
        return note_probabilities();
    }
  }

  void add(const char* name, int64_t size, bool from_both_ends, std::optional<int64_t> except = std::nullopt) {
    const auto index = arguments_.index_of(name);
    if (!index || size < 0 || !is_index(plan_.arguments[*index])) return;
    ranges_.push_back({*index, std::nullopt, arguments_.first_tensor(*index), from_both_ends ? -size : 0, size - 1, except});
  }

  void note_indices(const Layout& self) {
    const auto list = arguments_.index_of("indices");
    if (!list || plan_.arguments[*list].tag != Tag::kTensorList) return;
    size_t dim = 0, tensor = arguments_.first_tensor(*list), item = 0;
    for (const auto& index : plan_.arguments[*list].items) {
      const bool is_mask = index.tag == Tag::kTensor && (index.layout->dtype == c10::kBool || index.layout->dtype == c10::kByte);
      if (dim < self.sizes.size() && is_index(index)) ranges_.push_back({*list, item, tensor, -self.sizes[dim], self.sizes[dim] - 1, std::nullopt});
      dim += is_mask ? index.layout->sizes.size() : 1;
      tensor += tensors_in(index);
      ++item;
    }
  }

  void note_probabilities() {
    const char* name = arguments_.layout("p") != nullptr ? "p" : "self";
    const Layout* layout = arguments_.layout(name);
    const bool draws_elsewhere = arguments_.named("p") != nullptr && arguments_.layout("p") == nullptr;  // from one number, which the host checks
    if (layout == nullptr || layout->numel == 0 || draws_elsewhere || !c10::isFloatingType(layout->dtype)) return;
    const size_t index = *arguments_.index_of(name);
    ranges_.push_back({index, std::nullopt, arguments_.first_tensor(index), 0, 1, std::nullopt});
  }

  const Plan& plan_;
  const Arguments arguments_;
  std::vector<NumberRange> ranges_;
};

void note_made(Plan& plan, std::string_view name) {
  if (name == "arange") {
    plan.made = MadeNumbers{0, true, {}};
    return;
  }
  const auto* maker = std::find_if(std::begin(kMakers), std::end(kMakers), [&](const Maker& known) { return known.name == name; });
  const Arguments arguments(plan);
  const Layout* self = arguments.layout("self");
  if (maker == std::end(kMakers) || self == nullptr || plan.outputs.size() <= maker->output) return;
  const ArgumentPlan* along = arguments.named("dim");
  const auto dim = arguments.number("dim");
  if (along != nullptr && !dim && along->tag != Tag::kNone) return;
  const int64_t size = dim ? size_along(*self, *dim) : self->numel;
  if (size > 0) plan.made = MadeNumbers{maker->output, false, {0, static_cast<double>(size - 1)}};
}

// Indices as whole numbers, probabilities in six digits.
std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  return (std::ostringstream() << std::setprecision(std::abs(number) < 1e6 ? 6 : 19) << number).str();
}

}  // namespace

std::vector<NumberRange> ranges_of(const Plan& plan) {
  const auto name = base_name(plan);
  const auto* known = std::find_if(std::begin(kGuardedOperators), std::end(kGuardedOperators), [&](const Guarded& one) { return one.name == name; });
  return known == std::end(kGuardedOperators) ? std::vector<NumberRange>() : Noter(plan).ranges(known->rule);
}

void note_ranges(Plan& plan) {
  if (!plan.sparse.empty()) return;
  plan.ranges = ranges_of(plan);
  note_made(plan, base_name(plan));
}

Interval interval_of(const at::Tensor& numbers, std::optional<int64_t> except) {
  at::Tensor looked_at = numbers.numel() <= kFetchedMax ? numbers.cpu() : numbers;
  if (!except) {
    const auto [least, most] = at::aminmax(looked_at);
    const at::Tensor both = at::stack({least, most}).to(at::kDouble).cpu();
    return {both[0].item<double>(), both[1].item<double>()};
  }
  const Interval all = interval_of(looked_at, std::nullopt);
  const auto excepted = static_cast<double>(*except);
  if (excepted < all.least || excepted > all.most) return all;
  return interval_of(looked_at.masked_fill(looked_at.eq(*except), 0), std::nullopt);  // 0 is a class wherever there are any
}

void hold_to_range(const Plan& plan, const NumberRange& range, const Interval& found) {
  const auto least = static_cast<double>(range.least), most = static_cast<double>(range.most);
  if (found.least >= least && found.most <= most) return;
  const double wrong = found.least >= least ? found.most : found.least;
  const auto& name = plan.op.schema().arguments()[range.argument].name();
  const std::string said = name + " holds " + number_text(wrong) + ", and must lie between " + std::to_string(range.least) + " and " + std::to_string(range.most);
  const LayoutRef& layout = plan.arguments[range.argument].layout;  // none of a list
  TORCH_CHECK(layout == nullptr || !c10::isFloatingType(layout->dtype), said);
  TORCH_CHECK_INDEX(range.least <= range.most, "index out of range: ", name, " holds ", number_text(wrong), " where there is nothing to lead into");
  TORCH_CHECK_INDEX(false, "index out of range: ", said, range.except ? " or be " + std::to_string(*range.except) : "");
}

std::optional<Interval> interval_made(const Plan& plan, const torch::jit::Stack& stack) {
  if (!plan.made) return std::nullopt;
  if (!plan.made->counts) return plan.made->interval;
  const Arguments arguments(plan);
  const auto first = arguments.index_of("start"), end = arguments.index_of("end");
  if (!end || !stack[*end].isScalar() || (first && !stack[*first].isScalar())) return std::nullopt;
  const double from = first ? stack[*first].toScalar().toDouble() : 0, to = stack[*end].toScalar().toDouble();
  return from <= to ? Interval{from, std::max(from, to - 1)} : Interval{std::min(from, to + 1), from};
}

}  // namespace forebay::worker
