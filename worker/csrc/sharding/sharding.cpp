#include "sharding/sharding.h"

#include <algorithm>

#include "call/call_storages.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

// Where a label stands; none where it does not.
std::optional<size_t> place_of(const Labels& labels, int label) {
  const auto found = std::find(labels.begin(), labels.end(), label);
  if (found == labels.end()) return std::nullopt;
  return static_cast<size_t>(found - labels.begin());
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

Sharding::Sharding(Gang& gang, const Device& device, int64_t parts, HeldLookup held, uint64_t number, const Plan& plan, const wire::Words& words)
    : gang_(gang),
      device_(device),
      parts_(parts),
      held_(std::move(held)),
      number_(number),
      source_(gang.templates().template_of(number)),
      op_(gang.templates().operator_of(number)),
      plan_(plan),
      words_(words),
      is_composed_(is_composed(source_, op_)),
      writes_(writes_of(plan)) {
  for_each_tensor(plan, words, [this](size_t place, uint64_t) { places_.push_back(place); });
}

bool Sharding::refuse(wire::Alone reason) {
  why_none_ = reason;
  return false;
}

std::optional<Way> Sharding::way() {
  if (!plan_.sparse.empty()) return std::nullopt;
  const auto strategy = is_composed_ ? strategy_of_composed(source_, op_) : strategy_of(source_, op_);
  if (!strategy || (!is_composed_ && plan_.random && !strategy->dropout)) return std::nullopt;
  for (const Cut& cut : cuts(*strategy)) {
    for (const bool cuts_copies : {false, true}) {
      cuts_copies_ = cuts_copies;
      if (auto way = way_by(cut, *strategy)) return way;
      if (!is_composed_) break;
    }
  }
  return std::nullopt;
}

std::optional<Way> Sharding::way_by(const Cut& cut, const Strategy& strategy) {
  cut_ = cut;
  fresh_.clear();
  copied_.clear();
  call_.emplace(source_);
  if (!copy_others(strategy) || !localize(strategy) || (!is_composed_ && !place_results(strategy))) return std::nullopt;
  Way& way = call_->way;
  if (is_composed_) {
    auto composition = composed();
    if (!composition) return std::nullopt;
    way.composition = std::make_shared<const Composition>(std::move(*composition));
  } else {
    if (strategy.dropout) way.zero_word = word_of(source_, *strategy.dropout);
    way.definition = gang_.templates().define_own(call_->local, op_);
  }
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (copied_.count(storage_of(tensor)) != 0) way.copied.push_back(tensor);
  }
  return std::move(way);
}

std::optional<Way> Sharding::turned() {
  if (!plan_.sparse.empty() || is_composed_) return std::nullopt;
  const auto strategy = strategy_of(source_, op_);
  if (!strategy || !strategy->is_worth_turning || (plan_.random && !strategy->dropout)) return std::nullopt;
  std::set<int> tried{kUncut};
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (held_(storage_of(tensor)).period() == 0) continue;
    for (const int label : strategy->tensors[tensor]) {
      if (!tried.insert(label).second) continue;
      const auto periods = periods_by(label, *strategy);
      if (!periods) continue;
      if (auto way = turned_to(*periods)) return way;
    }
  }
  return std::nullopt;
}

std::optional<std::map<uint64_t, int64_t>> Sharding::periods_by(int label, const Strategy& strategy) const {
  std::map<uint64_t, int64_t> periods;
  const LocalCall call(source_);
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const Held held = held_(storage_of(tensor));
    if (held.period() == 0) continue;
    int64_t period = 0;
    if (const auto dim = place_of(strategy.tensors[tensor], label)) {
      const auto& geometry = call.tensors()[tensor]->geometry;
      const auto local = rows_of(geometry, held.bytes, *dim);
      if (!local || held.may_be_copied) return std::nullopt;
      period = *local;
      if (period != held.period() && !can_turn(held.period(), period, parts_)) return std::nullopt;
    }
    const auto [known, is_new] = periods.emplace(storage_of(tensor), period);
    if (!is_new && known->second != period) return std::nullopt;
  }
  return periods;
}

std::optional<int64_t> Sharding::rows_of(const wire::Geometry& geometry, int64_t bytes, size_t dimension) const {
  const int64_t item_bytes = item_bytes_of(geometry), period = forebay::worker::period_of(geometry, dimension, geometry.sizes[dimension], item_bytes);
  if (period == 0 || bytes % period != 0) return std::nullopt;
  const auto local = local_view(geometry, item_bytes, period, parts_);
  return local && local->dimension == dimension ? std::optional(period) : std::nullopt;
}

std::optional<Way> Sharding::turned_to(const std::map<uint64_t, int64_t>& periods) const {
  const auto held = [&](uint64_t id) {
    Held now = held_(id);
    const auto period = periods.find(id);
    if (period != periods.end()) now.placement = period->second == 0 ? Placement() : Placement{Sharing::kRows, period->second, 0};
    return now;
  };
  const auto divided = Sharding(gang_, device_, parts_, held, number_, plan_, words_).way();
  if (!divided || !divided->is_divided()) return std::nullopt;
  Way way;
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const auto period = periods.find(storage_of(tensor));
    if (period == periods.end() || period->second == held_(period->first).period()) continue;
    if (period->second == 0) way.copied.push_back(tensor);
    else way.turned.emplace_back(tensor, period->second);
  }
  if (way.turned.empty()) return std::nullopt;
  turn_back(*divided, way);
  return way;
}

void Sharding::turn_back(const Way& divided, Way& way) const {
  const LocalCall call(source_);
  const size_t first = way.turned.front().first;
  const auto& given = call.tensors()[first]->geometry;
  const auto before = local_view(given, item_bytes_of(given), held_(storage_of(first)).period(), parts_);
  if (!before) return;
  size_t made = 0;
  for (const auto* output : call.outputs()) {
    if (output->tag != wire::OutputTag::kNew) continue;
    const auto& placement = divided.made.at(made).placement;
    const bool may_turn = placement.sharing == Sharing::kRows && output->geometry.sizes == given.sizes && is_gapless(*output);
    const auto period = may_turn ? rows_of(output->geometry, output->storage_bytes, before->dimension) : std::nullopt;
    if (period && can_turn(placement.period, *period, parts_)) way.turned_back.emplace_back(made, *period);
    ++made;
  }
}

std::optional<Composition> Sharding::composed() const {
  DividedCall call{source_, call_->local, op_, parts_, {}};
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const auto& start = call_->way.starts[tensor];
    if (start.kind == Way::Start::Kind::kRows) call.rows.push_back({tensor, start.period});
  }
  return composition_of(call, gang_, device_);
}

// Arguments.

std::vector<Sharding::Cut> Sharding::cuts(const Strategy& strategy) {
  std::vector<std::pair<Cut, int64_t>> found;  // with the bytes that have it
  std::optional<Cut> only;
  const LocalCall call(source_);
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const Held held = held_(storage_of(tensor));
    if (held.period() == 0) continue;
    const auto& geometry = call.tensors()[tensor]->geometry;
    const auto local = local_view(geometry, item_bytes_of(geometry), held.period(), parts_);
    if (!local && !held.may_be_copied) return refuse(wire::Alone::kViews), std::vector<Cut>();
    if (!local) continue;
    const Cut cut{strategy.tensors[tensor][local->dimension], geometry.sizes[local->dimension], local->rows};
    if (!held.may_be_copied) {
      const bool is_other = only && (only->label != cut.label || only->size != cut.size);
      if (cut.label == kUncut || is_other) return refuse(wire::Alone::kNoRule), std::vector<Cut>();
      if (only && only->rows != cut.rows) return refuse(wire::Alone::kViews), std::vector<Cut>();
      only = cut;
    }
    if (cut.label == kUncut) continue;
    const auto same = std::find_if(found.begin(), found.end(), [&](const auto& one) { return one.first == cut; });
    if (same == found.end()) found.emplace_back(cut, held.bytes);
    else same->second += held.bytes;
  }
  if (only) return {*only};
  std::stable_sort(found.begin(), found.end(), [](const auto& one, const auto& other) { return one.second > other.second; });
  std::vector<Cut> cuts;
  for (const auto& one : found) cuts.push_back(one.first);
  return cuts;
}

bool Sharding::copy_others(const Strategy& strategy) {
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const Held held = held_(storage_of(tensor));
    if (held.period() == 0) continue;
    const auto& geometry = geometry_of(tensor);
    const auto local = local_view(geometry, item_bytes_of(geometry), held.period(), parts_);
    if (local && cut_ == Cut{strategy.tensors[tensor][local->dimension], geometry.sizes[local->dimension], local->rows}) continue;
    if (!held.may_be_copied) return false;
    copied_.insert(storage_of(tensor));
  }
  return true;
}

bool Sharding::localize(const Strategy& strategy) {
  if (!agrees(strategy)) return false;
  place_targets(strategy);
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (!localize(tensor, strategy.tensors[tensor])) return false;
    if (fresh_.empty()) continue;
    const auto fresh = fresh_.find(storage_of(tensor));
    call_->way.fresh.push_back(fresh == fresh_.end() ? 0 : fresh->second);
  }
  return divide_sizes(strategy);
}

bool Sharding::agrees(const Strategy& strategy) const {
  const auto fits = [&](const Labels& labels, const std::vector<int64_t>& sizes) {
    if (labels.size() != sizes.size() || std::count(labels.begin(), labels.end(), cut_.label) > 1) return false;
    const auto place = place_of(labels, cut_.label);
    return !place || sizes[*place] == cut_.size;
  };
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    if (!fits(strategy.tensors[tensor], geometry_of(tensor).sizes)) return false;
  }
  return true;
}

void Sharding::place_targets(const Strategy& strategy) {
  for (size_t tensor = 0; tensor < places_.size(); ++tensor) {
    const uint64_t id = storage_of(tensor);
    const Held held = held_(id);
    const auto dim = place_of(strategy.tensors[tensor], cut_.label);
    if (!dim || period_of(id) != 0 || !(held.is_untouched || writes_[tensor] || cuts_copies_)) continue;
    const auto& geometry = geometry_of(tensor);
    const int64_t item_bytes = item_bytes_of(geometry), period = forebay::worker::period_of(geometry, *dim, cut_.rows, item_bytes);
    if (period == 0 || held.bytes % period != 0) continue;
    const auto local = local_view(geometry, item_bytes, period, parts_);
    if (local && local->dimension == *dim) fresh_.emplace(id, period);
  }
}

bool Sharding::localize(size_t tensor, const Labels& labels) {
  const auto& geometry = geometry_of(tensor);
  const auto dim = place_of(labels, cut_.label);
  const int64_t period = period_of(storage_of(tensor));
  const bool is_left = !dim && is_composed_;
  if (writes_[tensor] && !is_left && (!dim || period == 0)) return refuse(dim ? wire::Alone::kViews : wire::Alone::kNoRule);
  if (period != 0) {
    const auto local = local_view(geometry, item_bytes_of(geometry), period, parts_);
    if (!local || local->dimension != dim || local->rows != cut_.rows) return refuse(wire::Alone::kViews);
    call_->take_rows(tensor, period, *local);
    return true;
  }
  if (!dim) return true;
  if (cut_.rows != cut_.size) return refuse(wire::Alone::kViews);  // a part would lie in several places
  call_->take_part(tensor, *dim, parts_);
  return true;
}

bool Sharding::divide_sizes(const Strategy& strategy) {
  for (const auto& [place, position, label] : strategy.sizes) {
    if (label != cut_.label) continue;
    auto& argument = call_->local.arguments[place];
    int64_t& size = argument.tag == wire::Tag::kInt ? argument.integer : argument.list.at(position);
    if (size != cut_.size) return refuse(wire::Alone::kNoRule);
    size /= parts_;
  }
  return true;
}

int64_t Sharding::period_of(uint64_t id) const {
  const auto fresh = fresh_.find(id);
  if (fresh != fresh_.end()) return fresh->second;
  return copied_.count(id) != 0 ? 0 : held_(id).period();
}

// Results.

bool Sharding::place_results(const Strategy& strategy) {
  const auto& outputs = call_->outputs();
  for (size_t output = 0; output < outputs.size(); ++output) {
    const auto tag = outputs[output]->tag;
    if (tag == wire::OutputTag::kNone || tag == wire::OutputTag::kSame) continue;
    if (tag != wire::OutputTag::kNew || !place_result(strategy.results[output], *outputs[output])) return refuse(wire::Alone::kNoRule);
  }
  const auto is_sum = [](const Way::Made& made) { return made.placement.sharing == Sharing::kSum; };
  const auto& made = call_->way.made;
  if (strategy.added_once && std::any_of(made.begin(), made.end(), is_sum)) call_->way.first_word = word_of(source_, *strategy.added_once);
  return true;
}

bool Sharding::place_result(const ResultStrategy& strategy, wire::Output& output) {
  const auto& sizes = output.geometry.sizes;
  if (strategy.labels.size() != sizes.size()) return false;
  const auto dim = place_of(strategy.labels, cut_.label);
  if (!dim) return place_merged(strategy.merge, output);
  return sizes[*dim] == cut_.size && call_->make_rows(output, *dim, cut_.rows, parts_);
}

bool Sharding::place_merged(Merge merge, const wire::Output& output) {
  const bool is_empty = output.storage_bytes == 0;
  const auto sharing = is_empty && merge != Merge::kNone ? Sharing::kCopies : sharing_of(merge, static_cast<c10::ScalarType>(output.geometry.dtype));
  if (!sharing || (*sharing != Sharing::kCopies && !is_gapless(output))) return false;
  call_->make(output, {*sharing, 0, *sharing == Sharing::kCopies ? uint8_t{0} : output.geometry.dtype});
  return true;
}

}  // namespace forebay::worker
