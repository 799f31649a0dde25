#include "parallel/resting_rows.h"

#include <algorithm>

#include "gang/call_storages.h"
#include "parallel/call_tensors.h"

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
  for (const uint64_t id : ids) {
    const bool is_alone = storages_.at(id).share() == nullptr;
    if (is_alone) owners_.make_room_at(0, 2 * storages_.at(id).bytes(), ids);
    if (is_alone) shares_.gather(id);
    shares_.cut(id, step_.period_of(id));
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
  for (const uint64_t id : copied) bytes += storages_.at(id).bytes();
  if (!owners_.make_room(bytes, storages_of(plan, words))) return false;
  for (const uint64_t id : copied) shares_.gather(id);
  owners_.copy(copied);
  return true;
}

}  // namespace forebay::worker
