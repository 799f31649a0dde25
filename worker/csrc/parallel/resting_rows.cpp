#include "parallel/resting_rows.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "base/failure.h"
#include "call/call_storages.h"
#include "parallel/row_turn.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

std::vector<uint64_t> RestingRows::missing(const Plan& plan, const wire::Words& words) const {
  if (!step_.has_rows()) return {};
  std::vector<uint64_t> found;
  const auto written = written_of(plan, words);
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    const int64_t period = step_.period_of(id);
    const Entry& entry = storages_.at(id);
    if (period == 0 || entry.bytes() % period != 0) return;
    const bool is_alone = entry.share() == nullptr && entry.holds_anything();
    const bool is_copies = entry.share() != nullptr && entry.share()->placement.sharing == Sharing::kCopies;
    if (is_alone || (is_copies && std::binary_search(written.begin(), written.end(), id))) found.push_back(id);
  });
  return found;
}

void RestingRows::place(const Plan& plan, const wire::Words& words) {
  auto ids = missing(plan, words);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto given = storages_of(plan, words);
  std::vector<uint64_t> there;  // what is still to be placed may go to the host before
  std::set_difference(given.begin(), given.end(), ids.begin(), ids.end(), std::back_inserter(there));
  for (const uint64_t id : ids) {
    cut(id, step_.period_of(id), there);
    there.insert(std::upper_bound(there.begin(), there.end(), id), id);
  }
}

void RestingRows::cut(uint64_t id, int64_t period, const std::vector<uint64_t>& given) {
  const Entry& entry = storages_.at(id);
  if (entry.share() == nullptr) {
    const bool may_gather = entry.home() != kOnHost && owners_.may_have_room(2 * entry.bytes());
    if (may_gather && owners_.make_room_at(0, 2 * entry.bytes(), given, 2 * entry.bytes())) shares_.gather(id);
    else owners_.bring_to_host(id);
    owners_.make_room_for_rows(entry.bytes(), given);
  }
  shares_.cut(id, period);
}

void RestingRows::place_items(const std::vector<std::vector<uint64_t>>& items, const std::vector<uint64_t>& given) {
  for (const auto& ids : items) {
    int64_t period = 0, bytes = 0;
    for (const uint64_t id : ids) {
      const Share* share = storages_.at(id).share();
      if (share == nullptr || share->placement.sharing != Sharing::kRows) continue;
      period = share->placement.period;
      bytes = storages_.at(id).bytes();
    }
    for (const uint64_t id : ids) {
      const Entry& entry = storages_.at(id);
      if (period != 0 && entry.share() == nullptr && entry.holds_anything() && entry.bytes() == bytes) cut(id, period, given);
    }
  }
}

void RestingRows::return_from_host(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    const HostMemory* memory = storages_.at(id).on_host();
    if (memory == nullptr || memory->period() == 0) continue;
    owners_.make_room_for_rows(storages_.at(id).bytes(), ids);
    shares_.cut(id, memory->period());
  }
}

bool RestingRows::copy_for(const Way& way, const Plan& plan, const wire::Words& words) {
  std::vector<uint64_t> copied;
  size_t tensor = 0;
  int64_t bytes = 0;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) {
    if (std::find(way.copied.begin(), way.copied.end(), tensor++) != way.copied.end()) copied.push_back(id);
  });
  if (copied.empty()) return false;
  std::sort(copied.begin(), copied.end());
  copied.erase(std::unique(copied.begin(), copied.end()), copied.end());
  for (const uint64_t id : copied) bytes += storages_.at(id).bytes();
  if (!owners_.make_room(bytes, storages_of(plan, words))) return false;
  shares_.copy(copied);
  return true;
}

bool RestingRows::turn_for(const Way& way, const Plan& plan, const wire::Words& words) {
  if (way.turned.empty()) return false;
  std::vector<uint64_t> given;
  for_each_tensor(plan, words, [&](size_t, uint64_t id) { given.push_back(id); });
  const auto ids = storages_of(plan, words);
  return std::all_of(way.turned.begin(), way.turned.end(), [&](const auto& turned) {
    const auto [tensor, period] = turned;
    return storages_.at(given[tensor]).share()->placement.period == period || turn(given[tensor], period, ids);
  });
}

void RestingRows::turn_back(const std::vector<std::pair<size_t, int64_t>>& made, const Plan& plan, const wire::Words& words) {
  std::vector<uint64_t> ids;
  for_each_made(plan, words, [&](size_t, uint64_t id) { ids.push_back(id); });
  for (const auto& [number, period] : made) turn(ids[number], period, ids);
}

bool RestingRows::turn(uint64_t id, int64_t period, const std::vector<uint64_t>& given) {
  const int64_t rows = storages_.at(id).bytes() / shares_.devices();
  if (!owners_.make_room(RowTurn::kTimesRows * rows, given)) return false;
  try {
    shares_.turn(id, period);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {  // this device may be the one without room
    if (!is_out_of_memory(std::current_exception())) throw;
    return false;
  }
  return true;
}

}  // namespace forebay::worker
