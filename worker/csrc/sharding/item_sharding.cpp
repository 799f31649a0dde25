#include "sharding/item_sharding.h"

#include "call/call_storages.h"
#include "sharding/call_tensors.h"
#include "sharding/item_norms.h"

namespace forebay::worker {

namespace {

// It says in a number of its own whether an item has an infinite element: 1 from each device that sees one.
bool is_check_of_items(const c10::OperatorHandle& op) { return op.schema().name() == "aten::_amp_foreach_non_finite_check_and_unscale_"; }

}  // namespace

ItemSharding::ItemSharding(Gang& gang, int64_t parts, HeldLookup held, uint64_t number, const Plan& plan, const wire::Words& words)
    : gang_(gang),
      parts_(parts),
      held_(std::move(held)),
      number_(number),
      items_(gang.templates().length_of_items(number)),
      words_(words),
      writes_(writes_of(plan)),
      call_(gang.templates().template_of(number)) {
  for_each_tensor(plan, words, [this](size_t place, uint64_t) { starts_.push_back(place); });
}

std::optional<Way> ItemSharding::way() {
  if (items_ == 0) return std::nullopt;
  for (const auto& argument : gang_.templates().template_of(number_).arguments) note(argument, std::nullopt);
  if (places_.size() != starts_.size() || !find_cuts() || !divide_tensors()) return std::nullopt;
  const auto op = gang_.templates().operator_of(number_);
  if (is_item_norms(op)) return way_of_norms();
  if (!divide_results()) return std::nullopt;
  call_.way.definition = gang_.templates().define_own(call_.local, op);
  return std::move(call_.way);
}

std::optional<Way> ItemSharding::way_of_norms() {
  std::vector<bool> is_cut(items_, false);
  for (const auto& [item, cut] : cuts_) is_cut[item] = true;
  auto composition = composition_of_item_norms(call_.local, is_cut, gang_);
  if (!composition) return std::nullopt;
  call_.way.composition = std::make_shared<const Composition>(std::move(*composition));
  return std::move(call_.way);
}

void ItemSharding::note(const wire::Argument& argument, std::optional<size_t> item) {
  if (argument.tag == wire::Tag::kTensor) places_.push_back({places_.size(), item});
  const bool is_list = argument.tag == wire::Tag::kTensorList && argument.items.size() == items_;
  for (size_t index = 0; index < argument.items.size(); ++index) note(argument.items[index], is_list ? std::optional(index) : item);
}

std::optional<int64_t> ItemSharding::period_of(size_t tensor) const {
  const int64_t period = held_(storage_of(tensor)).period();
  if (period == 0) return std::nullopt;
  return period;
}

// All that is in rows of an item has its sizes, and is cut alike.
bool ItemSharding::find_cuts() {
  for (const auto& [tensor, item] : places_) {
    const auto period = period_of(tensor);
    if (!period) continue;
    const auto& geometry = call_.tensors()[tensor]->geometry;
    const auto local = local_view(geometry, item_bytes_of(geometry), *period, parts_);
    if (!item || !local) return false;
    const auto [cut, is_new] = cuts_.try_emplace(*item, Cut{geometry.sizes, local->dimension, local->rows});
    if (!is_new && (cut->second.sizes != geometry.sizes || cut->second.dimension != local->dimension || cut->second.rows != local->rows)) return false;
  }
  return !cuts_.empty();
}

// Copies of the same sizes come to lie in the same rows: what is written must, and what is read is cut with it.
bool ItemSharding::divide_tensors() {
  std::map<uint64_t, int64_t> fresh;
  for (const auto& [tensor, item] : places_) {
    const auto cut = item ? cuts_.find(*item) : cuts_.end();
    const auto& geometry = call_.tensors()[tensor]->geometry;
    const bool is_cut = cut != cuts_.end() && cut->second.sizes == geometry.sizes;
    if (!is_cut) {
      const bool is_number = item && *wire::elements_of(geometry.sizes) == 1;  // as the count of steps, which all devices write alike
      if (cut != cuts_.end() && !is_number) return false;
      if (!writes_[tensor] || item) continue;
      if (!is_check_of_items(gang_.templates().operator_of(number_))) return false;
      call_.way.written.push_back({tensor, {Sharing::kMax, 0, geometry.dtype}});
      continue;
    }
    const int64_t item_bytes = item_bytes_of(geometry);
    const int64_t period = period_of(tensor).value_or(forebay::worker::period_of(geometry, cut->second.dimension, cut->second.rows, item_bytes));
    if (period == 0 || held_(storage_of(tensor)).bytes % period != 0) return false;
    const auto local = local_view(geometry, item_bytes, period, parts_);
    if (!local || local->dimension != cut->second.dimension || local->rows != cut->second.rows) return false;
    if (!period_of(tensor) && !fresh.emplace(storage_of(tensor), period).second) return false;
    call_.take_rows(tensor, period, *local);
  }
  for (size_t tensor = 0; !fresh.empty() && tensor < places_.size(); ++tensor) {
    const auto period = fresh.find(storage_of(tensor));
    call_.way.fresh.push_back(period == fresh.end() ? 0 : period->second);
  }
  return true;
}

bool ItemSharding::divide_results() {
  for (size_t item = 0; item < call_.outputs().size(); ++item) {
    auto& output = *call_.outputs()[item];
    if (output.tag == wire::OutputTag::kNone || output.tag == wire::OutputTag::kSame) continue;
    if (output.tag != wire::OutputTag::kNew || call_.outputs().size() != items_) return false;
    const auto cut = cuts_.find(item);
    if (cut == cuts_.end()) call_.make(output, {Sharing::kCopies, 0, 0});
    else if (output.geometry.sizes != cut->second.sizes || !call_.make_rows(output, cut->second.dimension, cut->second.rows, parts_)) return false;
  }
  return true;
}

}  // namespace forebay::worker
