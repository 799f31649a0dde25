#include "owners.h"

#include <algorithm>
#include <numeric>

namespace forebay::worker {

namespace {

constexpr int64_t kOwnedBytes = int64_t{1} << 20;    // lists of fewer bytes are updated by every device, and what lies on one device is copied
constexpr int64_t kTogetherBytes = int64_t{64} << 20;  // copied with what is asked for

bool is_copies(const Entry& entry) { return entry.share() != nullptr && entry.share()->placement.sharing == Sharing::kCopies; }

bool is_home(const Entry& entry) { return entry.share() == nullptr && entry.holds_anything(); }

}  // namespace

// Whether what is written lies in lists whose items are taken one by one.
bool Owners::is_owned_together(uint64_t number, const Plan& plan, const wire::Words& words) const {
  if (gang_.length_of_items(number) < 2) return false;
  std::vector<uint64_t> listed;
  int64_t bytes = 0;
  for (const auto& ids : gang_.items_of(number, words)) listed.insert(listed.end(), ids.begin(), ids.end());
  std::sort(listed.begin(), listed.end());
  for (const uint64_t id : listed) bytes += storages_.at(id).bytes();
  const auto written = Gang::written_of(plan, words);
  return bytes >= kOwnedBytes && std::includes(listed.begin(), listed.end(), written.begin(), written.end());
}

std::vector<Owners::Part> Owners::parts_of(uint64_t number, Plan& plan, const wire::Words& words) {
  std::vector<Part> parts;
  if (!plan.sparse.empty()) return parts;
  if (is_owned_together(number, plan, words)) {
    const auto places = places_of(gang_.items_of(number, words));
    for (int place = 0; place < devices(); ++place) {
      std::vector<size_t> items;
      for (size_t item = 0; item < places.size(); ++item) {
        if (places[item] == place) items.push_back(item);
      }
      if (!items.empty()) parts.push_back({place, gang_.part_of_items(number, words, items)});
    }
    return parts;
  }
  std::vector<int64_t> there(gang_.size(), 0);
  for (const uint64_t id : Gang::storages_of(plan, words)) {
    const Entry& entry = storages_.at(id);
    if (is_home(entry) && lent_.count(id) == 0) there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  const auto most = std::max_element(there.begin(), there.end());
  if (std::accumulate(there.begin(), there.end(), int64_t{0}) >= kOwnedBytes) parts.push_back({static_cast<int>(most - there.begin()), {number, &plan, words}});
  return parts;
}

// Each item stays where it is kept, as far as there is room for all that are; the others go, the largest first, where the fewest bytes are.
std::vector<int> Owners::places_of(const std::vector<std::vector<uint64_t>>& items) const {
  std::vector<int> places(items.size(), -1);
  std::vector<int64_t> kept(gang_.size(), 0), bytes(items.size(), 0);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t item = 0; item < items.size(); ++item) {
    for (const uint64_t id : items[item]) {
      const Entry& entry = storages_.at(id);
      bytes[item] += entry.bytes();
      if (entry.is_kept()) places[item] = entry.home();
    }
    if (places[item] >= 0) kept[static_cast<size_t>(places[item])] += bytes[item];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) { return bytes[one] > bytes[other]; });
  const int64_t most = gang_.part_of(storages_.limit_bytes()) - spare_bytes();
  for (const size_t item : order) {
    if (places[item] < 0 || kept[static_cast<size_t>(places[item])] <= most) continue;
    kept[static_cast<size_t>(places[item])] -= bytes[item];
    places[item] = -1;
  }
  for (const size_t item : order) {
    if (places[item] >= 0) continue;
    const auto least = std::min_element(kept.begin(), kept.end());
    *least += bytes[item];
    places[item] = static_cast<int>(least - kept.begin());
  }
  return places;
}

std::vector<uint64_t> Owners::shared_by(const std::vector<Part>& parts) const {
  std::vector<uint64_t> all, shared;
  for (const auto& part : parts) {
    const auto ids = Gang::storages_of(*part.call.plan, part.call.words);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::sort(all.begin(), all.end());
  for (auto id = all.begin(); id != all.end(); ++id) {
    if (id != all.begin() && *id == *(id - 1) && (shared.empty() || shared.back() != *id)) shared.push_back(*id);
  }
  return shared;
}

bool Owners::are_ready(const std::vector<Part>& parts) const {
  const auto shared = shared_by(parts);
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    const auto ids = Gang::storages_of(*part.call.plan, part.call.words);
    return has_room(part.place, part.call.plan->new_bytes) && std::all_of(ids.begin(), ids.end(), [&](uint64_t id) {
      const Entry& entry = storages_.at(id);
      if (is_copies(entry)) return true;
      if (entry.is_partial() || std::binary_search(shared.begin(), shared.end(), id)) return false;
      return entry.is_untouched() || entry.home() == part.place;
    });
  });
}

void Owners::prepare(const std::vector<Part>& parts) {
  const auto shared = shared_by(parts);
  std::vector<uint64_t> partial;
  for (const uint64_t id : shared) {
    if (storages_.at(id).is_partial()) partial.push_back(id);
  }
  shares_.merge(partial);
  copy(shared);
  std::vector<std::vector<uint64_t>> given;  // to each part
  size_t most = 0;
  for (const auto& part : parts) {
    const auto& ids = given.emplace_back(Gang::storages_of(*part.call.plan, part.call.words));
    partial.clear();
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(partial), [&](uint64_t id) { return storages_.at(id).is_partial(); });
    shares_.merge_at(partial, part.place);
    keep_written(part);
    most = std::max(most, ids.size());
  }
  for (size_t index = 0; index < most; ++index) {  // by turns, so that devices with little room can exchange what they keep
    for (size_t part = 0; part < parts.size(); ++part) {
      if (index < given[part].size()) bring(given[part][index], parts[part].place, given[part]);
    }
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    int64_t bytes = parts[part].call.plan->new_bytes;
    for (const uint64_t id : given[part]) {
      bring(id, parts[part].place, given[part]);  // what another part had no room for
      if (storages_.at(id).is_untouched()) bytes += storages_.at(id).bytes();
    }
    make_room_at(parts[part].place, bytes, given[part]);
  }
}

void Owners::bring(uint64_t id, int place, const std::vector<uint64_t>& with) {
  const Entry& entry = storages_.at(id);
  if (!is_home(entry) || entry.home() == place) return;
  make_room_at(place, entry.bytes(), with);
  gang_.bring(id, place);
}

void Owners::carry_out(std::vector<Part>& parts, uint64_t sequence) {
  for (auto& part : parts) {
    auto& [place, call] = part;
    keep_written(part);
    for (const uint64_t id : Gang::storages_of(*call.plan, call.words)) {
      Entry& entry = storages_.at(id);
      if (entry.is_untouched()) gang_.bring(id, place);
      if (entry.share() == nullptr) entry.keep();
    }
    if (place == 0) continue;
    caller_.check(*call.plan, call.words);
    caller_.take_results(*call.plan);
    gang_.call(place, call.definition, *call.plan, call.words, sequence);
    gang_.rank(place).flush();
  }
  for (auto& [place, call] : parts) {
    if (place == 0) {
      caller_.bind(*call.plan, call.words);
      caller_.run(*call.plan);
    }
    for (size_t index = 0; index < call.plan->words.size(); ++index) {
      if (call.plan->words[index] == wire::Word::kNew) storages_.at(call.words[index]).keep();
    }
  }
}

void Owners::keep_written(const Part& part) {
  for (const uint64_t id : Gang::written_of(*part.call.plan, part.call.words)) {
    if (is_copies(storages_.at(id))) keep(id, part.place);
  }
}

void Owners::keep(uint64_t id, int place) {
  if (storages_.at(id).share()->is_lent) lent_.insert(id);
  shares_.keep(id, place);
}

void Owners::copy(const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> homes;
  int64_t bytes = 0;
  for (const uint64_t id : ids) {
    if (!is_home(storages_.at(id))) continue;
    homes.push_back(id);
    bytes += storages_.at(id).bytes();
  }
  const bool is_lent = std::any_of(homes.begin(), homes.end(), [&](uint64_t id) { return lent_.count(id) != 0; });
  for (auto id = lent_.begin(); is_lent && id != lent_.end();) {
    const bool is_there = storages_.has(*id) && is_home(storages_.at(*id));
    if (is_there && bytes + storages_.at(*id).bytes() <= kTogetherBytes && have_room(bytes + storages_.at(*id).bytes()) &&
        std::find(homes.begin(), homes.end(), *id) == homes.end()) {
      homes.push_back(*id);
      bytes += storages_.at(*id).bytes();
    }
    id = is_there ? std::next(id) : lent_.erase(id);
  }
  shares_.spread(homes);
  for (const uint64_t id : homes) lent_.erase(id);
}

bool Owners::make_room(int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes) {
  if (have_room(bytes, scratch_bytes)) return true;
  leave_copies([&] { return have_room(bytes + spare_bytes(), scratch_bytes); }, but);
  for (int place = 0; place < devices(); ++place) {
    if (!gang_.has_room(place, bytes + std::max(spare_bytes(), scratch_bytes))) gang_.relieve(place, bytes, but, scratch_bytes);
  }
  return gang_.all_have_room(bytes);
}

bool Owners::make_room_at(int place, int64_t bytes, const std::vector<uint64_t>& but) {
  if (has_room(place, bytes)) return true;
  leave_copies([&] { return has_room(place, bytes + spare_bytes()); }, but);
  if (!has_room(place, bytes)) gang_.relieve(place, bytes, but);
  return gang_.has_room(place, bytes);
}

void Owners::leave_copies(const std::function<bool()>& has_room, const std::vector<uint64_t>& but) {
  std::vector<std::pair<uint64_t, uint64_t>> shared;  // by their last use
  for (const auto& item : storages_.items()) {
    const Entry& entry = storages_.at(item.id);
    if ((is_copies(entry) || entry.is_partial()) && !std::binary_search(but.begin(), but.end(), item.id)) shared.emplace_back(entry.share()->used, item.id);
  }
  std::sort(shared.begin(), shared.end());
  for (const auto& [used, id] : shared) {
    if (has_room()) return;
    const int place = gang_.roomiest();
    if (storages_.at(id).is_partial()) shares_.merge_at({id}, place);
    else keep(id, place);
  }
}

}  // namespace forebay::worker
