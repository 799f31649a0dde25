#include "gang/sharding.h"

#include <algorithm>

#include "gang/call_storages.h"

namespace forebay::worker {

namespace {

int64_t item_bytes_of(const wire::Geometry& geometry) { return static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(geometry.dtype))); }

// Where a label stands; none where it does not.
std::optional<size_t> place_of(const Labels& labels, int label) {
  const auto found = std::find(labels.begin(), labels.end(), label);
  if (found == labels.end()) return std::nullopt;
  return static_cast<size_t>(found - labels.begin());
}

void collect_tensors(std::vector<wire::Argument>& arguments, std::vector<wire::Argument*>& tensors) {
  for (auto& argument : arguments) {
    if (argument.tag == wire::Tag::kTensor) tensors.push_back(&argument);
    collect_tensors(argument.items, tensors);
  }
}

void collect_outputs(std::vector<wire::Output>& outputs, std::vector<wire::Output*>& all) {
  for (auto& output : outputs) {
    if (output.tag == wire::OutputTag::kList) collect_outputs(output.items, all);
    else all.push_back(&output);
  }
}

// Whether the elements fill their storage.
bool is_gapless(const wire::Output& output) {
  const auto elements = wire::elements_of(output.geometry.sizes);
  return elements && *elements * item_bytes_of(output.geometry) == output.storage_bytes && wire::span_of(output.geometry) == *elements;
}

std::optional<Sharing> sharing_of(Merge merge, c10::ScalarType dtype) {
  const bool is_truth = dtype == c10::ScalarType::Bool;
  switch (merge) {
    case Merge::kSum:
      return is_truth ? std::nullopt : std::optional(Sharing::kSum);
    case Merge::kMean:
      return c10::isFloatingType(dtype) || c10::isComplexType(dtype) ? std::optional(Sharing::kMean) : std::nullopt;
    case Merge::kMax:
      return c10::isComplexType(dtype) ? std::nullopt : std::optional(Sharing::kMax);
    case Merge::kMin:
      return c10::isComplexType(dtype) ? std::nullopt : std::optional(Sharing::kMin);
    case Merge::kSame:
      return Sharing::kCopies;
    case Merge::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace

Sharding::Sharding(Gang& gang, const Device& device, Storages& storages, uint64_t number, const Plan& plan, const wire::Words& words)
    : gang_(gang),
      device_(device),
      storages_(storages),
      source_(gang.templates().template_of(number)),
      op_(gang.templates().operator_of(number)),
      plan_(plan),
      words_(words),
      writes_(writes_of(plan)) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kStorage) places_.push_back(index);
  }
}

bool Sharding::refuse(wire::Alone reason) {
  why_none_ = reason;
  return false;
}

std::optional<Way> Sharding::way() {
  if (!plan_.sparse.empty()) return std::nullopt;
  if (is_composed(source_, op_)) return composed_way();
  const auto strategy = strategy_of(source_, op_);
  if (!strategy || (plan_.random && !strategy->dropout) || !localize(*strategy) || !place_results(*strategy)) return std::nullopt;
  if (strategy->dropout) way_.zero_word = word_of(source_, *strategy->dropout);
  way_.definition = gang_.templates().define_own(local_, op_);
  return std::move(way_);
}

std::optional<Way> Sharding::composed_way() {
  const auto strategy = strategy_of_composed(source_, op_);
  may_write_copies_ = true;
  if (!strategy || !localize(*strategy)) return std::nullopt;
  DividedCall call{source_, local_, op_, {}};
  for (size_t tensor = 0; tensor < way_.starts.size(); ++tensor) {
    if (way_.starts[tensor].kind == Way::Start::Kind::kRows) call.rows.push_back({tensor, way_.starts[tensor].period});
  }
  auto composition = composition_of(call, gang_, device_);
  if (!composition) return std::nullopt;
  way_.composition = std::make_shared<const Composition>(std::move(*composition));
  return std::move(way_);
}

// Arguments.

bool Sharding::localize(const Strategy& strategy) {
  local_ = source_;
  collect_tensors(local_.arguments, tensors_);
  way_.starts.resize(tensors_.size());
  if (!find_cut(strategy) || !agrees(strategy)) return false;
  place_targets(strategy);
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (!localize(tensor, strategy.tensors[tensor])) return false;
    if (fresh_.empty()) continue;
    const auto fresh = fresh_.find(storage_of(tensor));
    way_.fresh.push_back(fresh == fresh_.end() ? 0 : fresh->second);
  }
  return divide_sizes(strategy);
}

bool Sharding::find_cut(const Strategy& strategy) {
  bool found = false;
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const int64_t period = period_of(storage_of(tensor));
    if (period == 0) continue;
    const auto& geometry = tensors_[tensor]->geometry;
    const auto local = local_view(geometry, item_bytes_of(geometry), period, devices());
    if (!local) return refuse(wire::Alone::kViews);
    const Cut cut{strategy.tensors[tensor][local->dimension], geometry.sizes[local->dimension], local->rows};
    if (cut.label == kUncut || (found && (cut.label != cut_.label || cut.size != cut_.size))) return refuse(wire::Alone::kNoRule);
    if (found && cut.rows != cut_.rows) return refuse(wire::Alone::kViews);
    cut_ = cut;
    found = true;
  }
  return found;
}

bool Sharding::agrees(const Strategy& strategy) const {
  const auto fits = [&](const Labels& labels, const std::vector<int64_t>& sizes) {
    if (labels.size() != sizes.size() || std::count(labels.begin(), labels.end(), cut_.label) > 1) return false;
    const auto place = place_of(labels, cut_.label);
    return !place || sizes[*place] == cut_.size;
  };
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (!fits(strategy.tensors[tensor], tensors_[tensor]->geometry.sizes)) return false;
  }
  return true;
}

void Sharding::place_targets(const Strategy& strategy) {
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const uint64_t id = storage_of(tensor);
    const Entry& entry = storages_.at(id);
    const auto dim = place_of(strategy.tensors[tensor], cut_.label);
    if (!dim || period_of(id) != 0 || !(entry.is_untouched() || writes_[tensor])) continue;
    const auto& geometry = tensors_[tensor]->geometry;
    const int64_t item_bytes = item_bytes_of(geometry), period = forebay::worker::period_of(geometry, *dim, cut_.rows, item_bytes);
    if (period == 0 || entry.bytes() % period != 0) continue;
    const auto local = local_view(geometry, item_bytes, period, devices());
    if (local && local->dimension == *dim) fresh_.emplace(id, period);
  }
}

bool Sharding::localize(size_t tensor, const Labels& labels) {
  auto& geometry = tensors_[tensor]->geometry;
  auto& start = way_.starts[tensor];
  const auto dim = place_of(labels, cut_.label);
  const int64_t period = period_of(storage_of(tensor)), item_bytes = item_bytes_of(geometry);
  const bool is_left = !dim && may_write_copies_;
  if (writes_[tensor] && !is_left && (!dim || period == 0)) return refuse(dim ? wire::Alone::kViews : wire::Alone::kNoRule);
  if (period != 0) {
    const auto local = local_view(geometry, item_bytes, period, devices());
    if (!local || local->dimension != dim || local->rows != cut_.rows) return refuse(wire::Alone::kViews);
    geometry = local->geometry;
    start = {Way::Start::Kind::kRows, item_bytes, period, local->room, 0};
    return true;
  }
  if (!dim) return true;
  if (cut_.rows != cut_.size) return refuse(wire::Alone::kViews);  // a part would lie in several places
  geometry.sizes[*dim] /= devices();
  start.kind = Way::Start::Kind::kPart;
  start.step = wire::elements_of(geometry.sizes).value_or(0) == 0 ? 0 : geometry.sizes[*dim] * geometry.strides[*dim];  // nothing lies behind no elements
  return true;
}

bool Sharding::divide_sizes(const Strategy& strategy) {
  for (const auto& [place, position, label] : strategy.sizes) {
    if (label != cut_.label) continue;
    auto& argument = local_.arguments[place];
    int64_t& size = argument.tag == wire::Tag::kInt ? argument.integer : argument.list.at(position);
    if (size != cut_.size) return refuse(wire::Alone::kNoRule);
    size /= devices();
  }
  return true;
}

int64_t Sharding::period_of(uint64_t id) const {
  const auto fresh = fresh_.find(id);
  if (fresh != fresh_.end()) return fresh->second;
  const Share* share = storages_.at(id).share();
  return share != nullptr && share->placement.sharing == Sharing::kRows ? share->placement.period : 0;
}

// Results.

bool Sharding::place_results(const Strategy& strategy) {
  std::vector<wire::Output*> outputs;
  collect_outputs(local_.outputs, outputs);
  for (size_t output = 0; output < outputs.size(); ++output) {
    const auto tag = outputs[output]->tag;
    if (tag == wire::OutputTag::kNone || tag == wire::OutputTag::kSame) continue;
    if (tag != wire::OutputTag::kNew || !place_result(strategy.results[output], *outputs[output])) return refuse(wire::Alone::kNoRule);
  }
  return true;
}

bool Sharding::place_result(const ResultStrategy& strategy, wire::Output& output) {
  const auto& sizes = output.geometry.sizes;
  if (strategy.labels.size() != sizes.size()) return false;
  const auto dim = place_of(strategy.labels, cut_.label);
  if (!dim) return place_merged(strategy.merge, output);
  return sizes[*dim] == cut_.size && place_rows(*dim, output);
}

bool Sharding::place_rows(size_t dimension, wire::Output& output) {
  const int64_t item_bytes = item_bytes_of(output.geometry), period = forebay::worker::period_of(output.geometry, dimension, cut_.rows, item_bytes);
  if (!is_gapless(output) || period == 0 || output.storage_bytes % period != 0) return false;
  const auto local = local_view(output.geometry, item_bytes, period, devices());
  if (!local || local->dimension != dimension) return false;
  way_.made.push_back({{Sharing::kRows, period, 0}, output.storage_bytes});
  output.geometry = local->geometry;
  output.storage_bytes /= devices();
  return true;
}

bool Sharding::place_merged(Merge merge, const wire::Output& output) {
  const bool is_empty = output.storage_bytes == 0;
  const auto sharing = is_empty && merge != Merge::kNone ? Sharing::kCopies : sharing_of(merge, static_cast<c10::ScalarType>(output.geometry.dtype));
  if (!sharing || (*sharing != Sharing::kCopies && !is_gapless(output))) return false;
  way_.made.push_back({{*sharing, 0, *sharing == Sharing::kCopies ? uint8_t{0} : output.geometry.dtype}, output.storage_bytes});
  return true;
}

}  // namespace forebay::worker
