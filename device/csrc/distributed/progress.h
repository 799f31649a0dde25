// How far the members of process groups are, and whether they could all go on from where they are now: between the same collectives. Knows no
// store, thread or worker.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "forebay/wire.h"

namespace forebay {

// What is done in the same order by all that take part: the collectives of a group, or the messages from one of its members to another.
struct Channel {
  static constexpr uint64_t kAll = ~uint64_t{0};

  std::string group;  // as all its members name it
  uint64_t from = kAll;
  uint64_t to = kAll;

  bool is_collective() const { return from == kAll; }
  auto operator<=>(const Channel&) const = default;
};

// How much was recorded on each.
using Counts = std::map<Channel, uint64_t>;

// Of one process.
struct Progress {
  struct Membership {
    uint64_t rank = 0;
    uint64_t size = 0;
    std::set<uint64_t> met;  // members whose workers its worker was told of
  };
  std::map<std::string, Membership> groups;
  Counts recorded;

  bool takes_part(const Channel& channel) const;
  uint64_t count(const Channel& channel) const;
  // Whether others have recorded something that this process is still to record.
  bool is_behind(const Counts& targets) const;

  std::string packed() const;
  // Throws wire::WireError.
  static Progress of(const std::string& packed);
};

std::string packed(const Counts& counts);
// Throws wire::WireError.
Counts counts_of(const std::string& packed);

// Looks for a cut, of all processes: where none is behind another. The processes record nothing unless they are behind, and then as little as brings
// them there. What a process records on its way may leave another one behind, so it takes rounds.
class CutSearch {
 public:
  static constexpr uint64_t kRoundsMax = 64;

  enum class Verdict : uint8_t {
    kFound,       // they are at one
    kGoOn,        // those that are behind the targets go on until they are not
    kImpossible,  // now: a group is about to be made, or they do not come together
  };

  // Of all members, in this round.
  Verdict conclude(const std::vector<Progress>& members);
  const Counts& targets() const { return targets_; }
  uint64_t round() const { return round_; }

 private:
  // Whether all members of each group know it, as far as others know them.
  static bool are_groups_whole(const std::vector<Progress>& members);
  static bool has_all_of(const Channel& channel, const std::vector<Progress>& members);

  Counts targets_;
  uint64_t round_ = 0;
};

}  // namespace forebay
