#include "sharding/ways.h"

#include <algorithm>

#include "sharding/call_tensors.h"
#include "sharding/item_sharding.h"
#include "sharding/sharding.h"

namespace forebay::worker {

size_t Ways::KeyHash::operator()(const Key& key) const {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint64_t word : key) hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return static_cast<size_t>(hash ^ (hash >> 32));
}

Way* Ways::known(const TemplateCall& call, const HeldLookup& held) {
  const auto found = ways_.find(key_of(call, held));
  return found == ways_.end() ? nullptr : &found->second;
}

Way& Ways::of(const TemplateCall& call, const HeldLookup& held) {
  const auto [found, is_new] = ways_.try_emplace(key_of(call, held));
  if (is_new) found->second = new_way(call, held);
  return found->second;
}

Ways::Key Ways::key_of(const TemplateCall& call, const HeldLookup& held) {
  Key key{call.number};
  for_each_tensor(*call.plan, call.words, [&](size_t, uint64_t id) { key.push_back(number_of(held(id))); });
  note_aliases(call, key);
  return key;
}

// Which tensors share a storage: what becomes of one then becomes of the other.
void Ways::note_aliases(const TemplateCall& call, Key& key) {
  std::vector<std::pair<uint64_t, uint64_t>> storages;
  for_each_tensor(*call.plan, call.words, [&](size_t, uint64_t id) { storages.emplace_back(id, storages.size()); });
  std::sort(storages.begin(), storages.end());
  for (size_t one = 1; one < storages.size(); ++one) {
    if (storages[one - 1].first == storages[one].first) key.insert(key.end(), {storages[one - 1].second, storages[one].second});
  }
}

uint64_t Ways::number_of(const Held& held) {
  if (!held.placement) return 0;
  const std::pair<Placement, bool> kind{*held.placement, held.may_be_copied && held.period() != 0};
  const auto found = std::find(placements_.begin(), placements_.end(), kind);
  if (found != placements_.end()) return static_cast<uint64_t>(found - placements_.begin()) + 1;
  placements_.push_back(kind);
  return placements_.size();
}

Way Ways::new_way(const TemplateCall& call, const HeldLookup& held) {
  Sharding sharding(gang_, device_, parts_, held, call.number, *call.plan, call.words);
  if (auto way = sharding.way()) return *way;
  if (auto way = ItemSharding(gang_, parts_, held, call.number, *call.plan, call.words).way()) return *way;
  if (auto way = sharding.turned()) return *way;
  Way whole;
  whole.whole = true;
  whole.alone = sharding.why_none();
  return whole;
}

}  // namespace forebay::worker
