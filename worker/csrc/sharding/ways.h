// The ways in which calls are carried out, each found once for a call's template and the placements of what it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/placement.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "sharding/way.h"

namespace forebay::worker {

class Ways {
 public:
  // `parts`: into which calls are divided.
  Ways(Gang& gang, const Device& device, int64_t parts) : gang_(gang), device_(device), parts_(parts) {}

  // Of a call of which something is in rows, and all that is held together is copies or in rows; null where it was not found yet.
  Way* known(const TemplateCall& call, const HeldLookup& held);
  // Throws wire::WireError as making a plan does.
  Way& of(const TemplateCall& call, const HeldLookup& held);
  // Templates have new numbers from here on.
  void forget() { ways_.clear(); }

 private:
  using Key = std::vector<uint64_t>;
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };

  Key key_of(const TemplateCall& call, const HeldLookup& held);
  static void note_aliases(const TemplateCall& call, Key& key);
  // Of a placement, and whether it may be copied.
  uint64_t number_of(const Held& held);
  Way new_way(const TemplateCall& call, const HeldLookup& held);

  Gang& gang_;
  const Device& device_;
  const int64_t parts_;
  std::vector<std::pair<Placement, bool>> placements_;  // with whether it may be copied; by number, from 1
  std::unordered_map<Key, Way, KeyHash> ways_;
};

}  // namespace forebay::worker
