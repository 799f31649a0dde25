#include "parallel/rows_for_room.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "call/call_storages.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

// By each dimension, the outermost ones first.
std::vector<RowsForRoom::Rows> RowsForRoom::possible(const Plan& plan, const wire::Words& words) const {
  std::vector<Rows> found;
  const auto devices = static_cast<int64_t>(gang_.size());
  const auto layouts = layouts_of(plan);
  auto layout = layouts.begin();
  for_each_tensor(plan, words, [&](size_t index, uint64_t id) {
    const Entry& entry = storages_.at(id);
    const Layout& view = **layout++;
    const bool is_divided = entry.share() != nullptr && entry.share()->placement.sharing != Sharing::kCopies;
    if (!entry.holds_anything() || is_divided || words[index + 1] != 0 || view.span_bytes() != entry.bytes()) return;
    for (size_t dimension = 0; dimension < view.sizes.size(); ++dimension) {
      const int64_t period = forebay::worker::period_of(geometry_of(view), dimension, view.sizes[dimension], view.item_bytes);
      if (view.sizes[dimension] % devices == 0 && period > 0 && entry.bytes() % period == 0) found.push_back({id, period, dimension, &view});
    }
  });
  const auto size_of = [](const Rows& rows) { return std::pair(rows.view->span_bytes(), rows.period); };
  std::stable_sort(found.begin(), found.end(), [&](const Rows& one, const Rows& other) { return size_of(one) > size_of(other); });
  return found;
}

std::vector<RowsForRoom::Rows> RowsForRoom::alike(const std::vector<Rows>& all, const Rows& one) {
  std::vector<Rows> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Rows& other) { return other.dimension == one.dimension && other.view->sizes == one.view->sizes; });
  return found;
}

bool RowsForRoom::is_too_large(const std::vector<uint64_t>& ids) const {
  int64_t bytes = 0, largest = 0;
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (entry.is_in_rows() || step_.period_of(id) != 0) return false;
    bytes += entry.bytes();
    largest = std::max(largest, entry.bytes());
  }
  return !owners_.may_have_room(bytes + largest);
}

bool RowsForRoom::rest(uint64_t number, const Plan& plan, const wire::Words& words) {
  if (owners_.may_have_room(2 * plan.given_bytes) || is_repeatable(plan, words)) return false;
  auto& templates = gang_.templates();
  if (templates.length_of_items(number) < 2) return is_too_large(storages_of(plan, words)) && rest_largest(number, plan, words);
  bool rests = false;
  const auto items = templates.items_of(number, words);
  for (size_t item = 0; item < items.size(); ++item) {
    if (!is_too_large(items[item])) continue;
    const auto part = templates.part_of_items(number, words, {item});
    rests = rest_largest(part.definition, *part.plan, part.words) || rests;
  }
  return rests;
}

bool RowsForRoom::rest_largest(uint64_t number, const Plan& plan, const wire::Words& words) {
  const auto all = possible(plan, words);
  for (const auto& one : all) {
    const auto rows = alike(all, one);
    if (!is_divided_by(rows, number, plan, words)) continue;
    for (const auto& resting : rows) step_.rest(resting.id, resting.period);
    return true;
  }
  return false;
}

bool RowsForRoom::divide(uint64_t number, const Plan& plan, const wire::Words& words, Rest rest) {
  const auto all = possible(plan, words);
  for (const auto& one : all) {
    for (const auto& rows : {alike(all, one), std::vector<Rows>{one}}) {  // the more are in rows, the fewer devices need whole
      if (!is_divided_by(rows, number, plan, words, rest)) continue;
      for (const auto& cut : rows) {
        if (!storages_.at(cut.id).is_in_rows()) rows_.cut(cut.id, cut.period, storages_of(plan, words));  // it may be given twice
      }
      return true;
    }
  }
  return false;
}

bool RowsForRoom::divide_ahead(uint64_t number, const Plan& plan, const wire::Words& words) {
  const bool may_write_in_part = !plan.mutated.empty() && (!plan.bounds.empty() || plan.partial_writes != PartialWrites::kNone);  // it is carried out whole
  if (may_write_in_part || gang_.templates().length_of_items(number) > 1) return false;
  try {
    return divide(number, plan, words, Rest::kAsItLies);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    if (!is_out_of_memory(std::current_exception())) throw;
    return false;
  }
}

// Whether a rule divides a call that has these in rows.
bool RowsForRoom::is_divided_by(const std::vector<Rows>& rows, uint64_t number, const Plan& plan, const wire::Words& words, Rest rest) {
  const Way& way = ways_.of({number, &plan, words}, [&](uint64_t id) {
    const auto cut = std::find_if(rows.begin(), rows.end(), [&](const Rows& one) { return one.id == id; });
    const Entry& entry = storages_.at(id);
    Placement placement;
    if (cut != rows.end()) placement = {Sharing::kRows, cut->period, 0};
    else if (rest == Rest::kAsItLies && entry.is_in_rows()) placement = entry.share()->placement;
    return Held{placement, entry.bytes(), false, false};
  });
  return way.is_divided();
}

}  // namespace forebay::worker
