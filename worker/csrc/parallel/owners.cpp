#include "parallel/owners.h"

#include <algorithm>
#include <numeric>

#include "call/call_storages.h"

namespace forebay::worker {

namespace {

constexpr int64_t kTogetherBytes = int64_t{64} << 20;  // copied with what is asked for

bool is_copies(const Entry& entry) { return entry.share() != nullptr && entry.share()->placement.sharing == Sharing::kCopies; }

bool is_home(const Entry& entry) { return entry.share() == nullptr && entry.holds_anything(); }

}  // namespace

Owners::Owners(Gang& gang, Storages& storages, Caller& caller, Shares& shares) : gang_(gang), storages_(storages), caller_(caller), shares_(shares) {
  gang_.homes().leave_by([this](const auto& has_room, const auto& but) { leave_copies(has_room, but); }, [this](const auto& has_room, const auto& but) { leave_rows(has_room, but); });
}

bool Owners::is_owned_together(uint64_t number, const Plan& plan, const wire::Words& words) const {
  if (gang_.templates().length_of_items(number) < 2) return false;
  std::vector<uint64_t> listed;
  int64_t bytes = 0;
  for (const auto& ids : gang_.templates().items_of(number, words)) listed.insert(listed.end(), ids.begin(), ids.end());
  std::sort(listed.begin(), listed.end());
  for (const uint64_t id : listed) bytes += storages_.at(id).bytes();
  const auto written = written_of(plan, words);
  return bytes >= kOwnedBytes && std::includes(listed.begin(), listed.end(), written.begin(), written.end());
}

std::vector<Owners::Part> Owners::parts_of(uint64_t number, Plan& plan, const wire::Words& words) {
  if (!plan.sparse.empty()) return {};
  if (is_owned_together(number, plan, words)) return parts_of_items(number, plan, words);
  std::vector<int64_t> there(gang_.size(), 0);
  int64_t bytes = 0, untouched_bytes = 0;
  bool is_shared = false;
  for (const uint64_t id : storages_of(plan, words)) {
    const Entry& entry = storages_.at(id);
    is_shared = is_shared || entry.share() != nullptr;
    if (entry.is_untouched()) untouched_bytes += entry.bytes();
    if (!is_home(entry) || lent_.count(id) != 0) continue;
    bytes += entry.bytes();
    if (entry.home() != kOnHost) there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  const bool has_no_copies = !is_shared && untouched_bytes >= kOwnedBytes && !have_room(bytes + untouched_bytes + plan.new_bytes);
  if (bytes < kOwnedBytes && !has_no_copies) return {};
  const auto most = std::max_element(there.begin(), there.end());
  const int place = *most > 0 ? static_cast<int>(most - there.begin()) : gang_.memory().roomiest();
  std::vector<Part> parts;
  parts.push_back({place, {number, &plan, words}});
  return parts;
}

std::vector<Owners::Part> Owners::parts_of_items(uint64_t number, const Plan& plan, const wire::Words& words) {
  const auto items = gang_.templates().items_of(number, words);
  const auto places = places_of(items);
  const int64_t most = gang_.memory().part_of(storages_.limit_bytes()) / 4 * 3;  // of a round, at a device
  const double growth = 1.0 + static_cast<double>(plan.new_bytes) / static_cast<double>(std::max<int64_t>(plan.given_bytes, 1));
  std::vector<Part> parts;
  for (int place = 0; place < devices(); ++place) {
    std::vector<std::vector<size_t>> rounds;
    int64_t together = 0;
    for (size_t item = 0; item < places.size(); ++item) {
      if (places[item] != place) continue;
      int64_t bytes = 0;
      for (const uint64_t id : items[item]) bytes += storages_.at(id).bytes();
      bytes = static_cast<int64_t>(static_cast<double>(bytes) * growth);
      if (rounds.empty() || together + bytes > most) {
        rounds.emplace_back();
        together = 0;
      }
      rounds.back().push_back(item);
      together += bytes;
    }
    for (size_t round = 0; round < rounds.size(); ++round) parts.push_back({place, gang_.templates().part_of_items(number, words, rounds[round]), round});
  }
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
      if (entry.is_kept() && entry.home() != kOnHost) places[item] = entry.home();
    }
    if (places[item] >= 0) kept[static_cast<size_t>(places[item])] += bytes[item];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) { return bytes[one] > bytes[other]; });
  const int64_t most = gang_.memory().part_of(storages_.limit_bytes()) - spare_bytes();
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

std::vector<uint64_t> Owners::given_to(const std::vector<const Part*>& parts) {
  std::vector<uint64_t> all;
  for (const Part* part : parts) {
    const auto ids = storages_of(*part->call.plan, part->call.words);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<uint64_t> Owners::shared_by(const std::vector<const Part*>& parts) {
  const auto all = given_to(parts);
  std::vector<uint64_t> shared;
  for (auto id = all.begin(); id != all.end(); ++id) {
    if (id != all.begin() && *id == *(id - 1) && (shared.empty() || shared.back() != *id)) shared.push_back(*id);
  }
  return shared;
}

bool Owners::are_ready(const std::vector<Part>& parts) const {
  std::vector<const Part*> all;
  for (const auto& part : parts) all.push_back(&part);
  const auto shared = shared_by(all);
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    const auto ids = storages_of(*part.call.plan, part.call.words);
    return part.round == 0 && has_room(part.place, part.call.plan->new_bytes) && std::all_of(ids.begin(), ids.end(), [&](uint64_t id) {
      const Entry& entry = storages_.at(id);
      if (is_copies(entry)) return true;
      if (entry.is_partial() || std::binary_search(shared.begin(), shared.end(), id)) return false;
      return entry.is_untouched() || entry.home() == part.place;
    });
  });
}

Owners::Round Owners::of_round(std::vector<Part>& parts, size_t round) {
  Round found;
  for (auto& part : parts) {
    if (part.round == round) found.push_back(&part);
  }
  return found;
}

void Owners::prepare_round(const Round& parts) {
  const auto shared = shared_by({parts.begin(), parts.end()}), all = given_to({parts.begin(), parts.end()});
  std::vector<uint64_t> partial;
  for (const uint64_t id : shared) {
    if (storages_.at(id).is_partial()) partial.push_back(id);
  }
  shares_.merge(partial);
  copy(shared);
  for (const Part* part : parts) {
    const auto ids = given_to({part});
    partial.clear();
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(partial), [&](uint64_t id) { return storages_.at(id).is_partial(); });
    shares_.merge_at(partial, part->place);
    keep_written(*part);
    for (const uint64_t id : ids) {  // what is used by no device where it lies leaves it, so that there is room for what is
      const Entry& entry = storages_.at(id);
      if (is_home(entry) && entry.home() != part->place && entry.home() != kOnHost) gang_.homes().bring(id, has_room(part->place, entry.bytes()) ? part->place : kOnHost);
    }
  }
  std::vector<int64_t> wanted;
  for (const Part* part : parts) {
    wanted.push_back(part->call.plan->new_bytes);
    for (const uint64_t id : given_to({part})) {
      const Entry& entry = storages_.at(id);
      if (entry.is_untouched() || (is_home(entry) && entry.home() != part->place)) wanted.back() += entry.bytes();
    }
  }
  const int64_t most = *std::max_element(wanted.begin(), wanted.end());
  for (size_t part = 0; part < parts.size(); ++part) {
    make_room_at(parts[part]->place, wanted[part], all, most + spare_bytes());
    for (const uint64_t id : given_to({parts[part]})) {
      if (is_home(storages_.at(id))) gang_.homes().bring(id, parts[part]->place);
    }
  }
}

void Owners::carry_out(std::vector<Part>& parts, uint64_t sequence, const std::function<bool()>& settle) {
  Part& first = parts.front();
  if (parts.size() == 1 && gang_.memory().may_lack(first.place, *first.call.plan) && is_repeatable(*first.call.plan, first.call.words)) {
    if (!settle()) throw CommandError(wire::FailureCode::kOperator, "a call before it failed");
    return carry_out_where_room(first, sequence);
  }
  for (size_t round = 0;; ++round) {
    const auto these = of_round(parts, round);
    if (these.empty()) return;
    if (round > 0) {
      if (!settle()) throw CommandError(wire::FailureCode::kOperator, "a part of the call failed");
      prepare_round(these);
    }
    carry_out_round(these, sequence);
  }
}

void Owners::carry_out_where_room(Part& part, uint64_t sequence) {
  const auto run = [&] {
    carry_out_round({&part}, sequence);
    for (const auto& [place, failure] : gang_.settle_each()) throw CommandError(failure.code, failure.message);
  };
  try {
    return run();
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    if (!is_out_of_memory(std::current_exception())) throw;
  }
  caller_.withdraw();
  gang_.homes().empty(part.place, given_to({&part}));
  run();
}

void Owners::carry_out_round(const Round& parts, uint64_t sequence) {
  for (Part* part : parts) {
    auto& call = part->call;
    keep_written(*part);
    for (const uint64_t id : given_to({part})) {
      Entry& entry = storages_.at(id);
      if (entry.is_untouched()) gang_.homes().bring(id, part->place);
      if (entry.share() == nullptr) entry.keep();
    }
    if (part->place == 0) continue;
    caller_.check(*call.plan, call.words);
    caller_.take_results(*call.plan);
    gang_.call(part->place, call.definition, *call.plan, call.words, sequence);
    gang_.rank(part->place).flush();
  }
  for (Part* part : parts) {
    auto& call = part->call;
    if (part->place == 0) {
      caller_.bind(*call.plan, call.words);
      caller_.run(*call.plan);
    }
    for (size_t index = 0; index < call.plan->words.size(); ++index) {
      if (call.plan->words[index] == wire::Word::kNew) storages_.at(call.words[index]).keep();
    }
  }
}

void Owners::keep_written(const Part& part) {
  for (const uint64_t id : written_of(*part.call.plan, part.call.words)) {
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

bool Owners::make_room(int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes, const std::vector<int64_t>& there) {
  const auto has_room = [&](int64_t more_bytes) {
    for (int place = 0; place < devices(); ++place) {
      const int64_t lies_there = there.empty() ? 0 : there[static_cast<size_t>(place)];
      if (!gang_.memory().has_room(place, bytes - lies_there + more_bytes)) return false;
    }
    return true;
  };
  const int64_t while_it_runs = std::max(spare_bytes(), scratch_bytes);
  if (has_room(while_it_runs)) return true;
  leave_copies([&] { return has_room(std::max(2 * spare_bytes(), scratch_bytes)); }, but);
  for (int place = 0; place < devices(); ++place) {
    const int64_t needed = bytes - (there.empty() ? 0 : there[static_cast<size_t>(place)]);
    if (!gang_.memory().has_room(place, needed + while_it_runs)) gang_.homes().relieve(place, needed, but, scratch_bytes, bytes + while_it_runs);
  }
  return has_room(there.empty() ? 0 : spare_bytes());  // what lies there cannot go while the rest comes
}

bool Owners::make_room_at(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t left_bytes) {
  if (!has_room(place, bytes)) gang_.homes().relieve(place, bytes, but, 0, left_bytes);
  return gang_.memory().has_room(place, bytes);
}

void Owners::leave_copies(const std::function<bool()>& has_room, const std::vector<uint64_t>& but) {
  std::vector<std::pair<uint64_t, uint64_t>> shared;  // by their last use
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    const Entry& entry = storages_.at(item.id);
    if ((is_copies(entry) || entry.is_partial()) && !std::binary_search(but.begin(), but.end(), item.id)) shared.emplace_back(entry.share()->used, item.id);
  }
  std::sort(shared.begin(), shared.end());
  for (const auto& [used, id] : shared) {
    if (has_room()) return;
    const int place = gang_.memory().roomiest();
    const int64_t period = period_of_ ? period_of_(id) : 0;
    if (storages_.at(id).is_partial()) shares_.merge_at({id}, place);
    else if (period != 0 && storages_.at(id).bytes() % period == 0) shares_.cut(id, period);
    else keep(id, place);
  }
}

void Owners::leave_rows(const std::function<bool()>& has_room, const std::vector<uint64_t>& but) {
  std::vector<std::pair<int64_t, uint64_t>> rows;
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    const Share* share = storages_.at(item.id).share();
    const bool is_rows = share != nullptr && share->placement.sharing == Sharing::kRows;
    if (is_rows && !std::binary_search(but.begin(), but.end(), item.id)) rows.emplace_back(-item.bytes, item.id);
  }
  std::sort(rows.begin(), rows.end());
  for (const auto& [minus, id] : rows) {
    if (has_room()) return;
    shares_.host_rows(id);
  }
}

}  // namespace forebay::worker
