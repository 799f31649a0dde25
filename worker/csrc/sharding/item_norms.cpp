#include "sharding/item_norms.h"

#include <string>

#include "gang/gang_templates.h"
#include "sharding/local_call.h"

namespace forebay::worker {

namespace {

constexpr int64_t kEuclidean = 2;  // the norm's order
const wire::Geometry kDoubleNumber{static_cast<uint8_t>(c10::ScalarType::Double), 0, {}, {}};

wire::Argument argument_of(wire::Tag tag) {
  wire::Argument argument;
  argument.tag = tag;
  return argument;
}

// Numbers that steps make, one for each item.
class NormSteps {
 public:
  NormSteps(const wire::Template& local, Gang& gang) : local_(local), gang_(gang) {}

  // From `first` on in the order of items, each with its geometry and placement.
  size_t make(const std::vector<wire::Geometry>& geometries, const std::vector<bool>& is_sum, bool are_results) {
    const size_t first = composition_.made.size();
    for (size_t item = 0; item < geometries.size(); ++item) {
      const auto& geometry = geometries[item];
      const Placement placement = is_sum[item] ? Placement{Sharing::kSum, 0, geometry.dtype} : Placement{Sharing::kCopies, 0, 0};
      composition_.made.push_back({placement, item_bytes_of(geometry), are_results ? std::optional(item) : std::nullopt, false});
      geometries_.push_back(geometry);
    }
    return first;
  }
  void make_from_zeros(size_t first) {
    for (; first < composition_.made.size(); ++first) composition_.made[first].from_zeros = true;
  }

  // A list of what was made; its words go to the step.
  wire::Argument list(size_t first, size_t items, Composition::Step& step) const {
    wire::Argument list = argument_of(wire::Tag::kTensorList);
    for (size_t made = first; made < first + items; ++made) {
      list.items.push_back(argument_of(wire::Tag::kTensor));
      list.items.back().geometry = geometries_[made];
      step.words.push_back([made](const Composition::Use& use) { return use.ids[made]; });
      step.words.push_back([](const Composition::Use&) { return uint64_t{0}; });
    }
    return list;
  }
  void step(const char* name, std::vector<wire::Argument> arguments, Composition::Step step, std::optional<size_t> makes, size_t items) {
    const auto op = gang_.templates().own_operator(name);
    wire::Template source;
    source.op = op.number;
    source.flags = local_.flags;
    source.arguments = std::move(arguments);
    wire::Output list;
    list.tag = wire::OutputTag::kList;
    for (size_t item = 0; makes && item < items; ++item) {
      const size_t made = *makes + item;
      wire::Output output;
      output.tag = wire::OutputTag::kNew;
      output.geometry = geometries_[made];
      output.storage_bytes = composition_.made[made].bytes;
      list.items.push_back(std::move(output));
      step.makes.push_back(made);
      step.words.push_back([made](const Composition::Use& use) { return use.ids[made]; });
    }
    if (makes) source.outputs.push_back(std::move(list));
    step.definition = gang_.templates().define_own(source, op.handle);
    composition_.steps.push_back(std::move(step));
  }
  void fits(std::function<bool(const wire::Words&)> fits) { composition_.fits = std::move(fits); }
  Composition take() { return std::move(composition_); }

 private:
  const wire::Template& local_;
  Gang& gang_;
  Composition composition_;
  std::vector<wire::Geometry> geometries_;  // of what is made
};

}  // namespace

bool is_item_norms(const c10::OperatorHandle& op) { return op.schema().name() == "aten::_foreach_norm" && op.schema().overload_name() == "Scalar"; }

std::optional<Composition> composition_of_item_norms(const wire::Template& local, const std::vector<bool>& is_cut, Gang& gang) {
  const size_t items = is_cut.size();
  const auto& arguments = local.arguments;  // self, ord, dtype
  const bool is_number = arguments.size() == 3 && (arguments[1].tag == wire::Tag::kScalarDouble || arguments[1].tag == wire::Tag::kScalarInt);
  if (!is_number || arguments[0].items.size() != items || local.outputs.size() != 1 || local.outputs[0].items.size() != items) return std::nullopt;
  std::vector<wire::Geometry> results;
  for (size_t item = 0; item < items; ++item) {
    const auto& output = local.outputs[0].items[item];
    const auto& given = arguments[0].items[item];
    const bool is_real = given.tag == wire::Tag::kTensor && c10::isFloatingType(static_cast<c10::ScalarType>(given.geometry.dtype));
    if (!is_real || output.tag != wire::OutputTag::kNew || !output.geometry.sizes.empty() || output.storage_bytes != item_bytes_of(output.geometry)) return std::nullopt;
    results.push_back(output.geometry);
  }
  NormSteps steps(local, gang);
  const size_t order = word_of(local, 1);
  const bool is_whole = arguments[1].tag == wire::Tag::kScalarInt;
  steps.fits([order, is_whole](const wire::Words& words) {
    return is_whole ? wire::zigzag_value(words[order]) == kEuclidean : wire::bits_value(words[order]) == static_cast<double>(kEuclidean);
  });

  const std::vector<wire::Geometry> doubles(items, kDoubleNumber);
  const std::vector<bool> none(items, false);
  const size_t norms = steps.make(doubles, none, false), squares = steps.make(doubles, is_cut, false), roots = steps.make(doubles, none, false);
  Composition::Step first;
  for (size_t word = 0; word <= order; ++word) first.words.push_back([word](const Composition::Use& use) { return use.words[word]; });
  wire::Argument dtype = argument_of(wire::Tag::kInt);
  dtype.integer = kDoubleNumber.dtype;
  steps.step("_foreach_norm.Scalar", {arguments[0], arguments[1], dtype}, std::move(first), norms, items);
  Composition::Step second;
  auto left = steps.list(norms, items, second), right = steps.list(norms, items, second);
  steps.step("_foreach_mul.List", {std::move(left), std::move(right)}, std::move(second), squares, items);
  Composition::Step third;
  for (size_t item = 0; item < items; ++item) {
    if (is_cut[item]) third.sums.push_back(squares + item);
  }
  auto summed = steps.list(squares, items, third);
  steps.step("_foreach_sqrt", {std::move(summed)}, std::move(third), roots, items);
  const size_t made = steps.make(results, none, true);
  steps.make_from_zeros(made);
  Composition::Step last;
  auto target = steps.list(made, items, last), source = steps.list(roots, items, last);
  steps.step("_foreach_copy_", {std::move(target), std::move(source), argument_of(wire::Tag::kBool)}, std::move(last), std::nullopt, items);
  return steps.take();
}

}  // namespace forebay::worker
