// Members of a process group that do something among themselves.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "collectives/process_group.h"

namespace forebay::worker {

struct Team {
  std::vector<size_t> members;  // in the order in which they reduce
  size_t own = 0;               // the place of this one

  size_t size() const { return members.size(); }
  template <class Do>
  void for_others(const Do& visit) const {
    for (size_t place = 0; place < size(); ++place) {
      if (place != own) visit(place, members[place]);
    }
  }
};

inline Team all_of(const ProcessGroup& group) {
  Team team{std::vector<size_t>(group.size()), group.rank()};
  std::iota(team.members.begin(), team.members.end(), size_t{0});
  return team;
}

}  // namespace forebay::worker
