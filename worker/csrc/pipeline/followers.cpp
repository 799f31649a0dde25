#include "pipeline/followers.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "call/call_storages.h"

namespace forebay::worker {

namespace {

// What each step that writes is given together: for lists, each item of them.
std::vector<std::vector<uint64_t>> given_together(const Path& path, size_t begin, Gang& gang, Templates& templates) {
  std::vector<std::vector<uint64_t>> together;
  for (size_t index = begin; index < path.size(); ++index) {
    const wire::Step& step = *path[index];
    if (wire::is_allocation(step.key)) continue;
    const uint64_t number = wire::key_value(step.key);
    const Plan& plan = templates.known(number);
    if (plan.mutated.empty()) continue;
    const wire::Words words = words_of(step);
    if (gang.templates().length_of_items(number) == 0) together.push_back(storages_of(plan, words));
    else for (auto& item : gang.templates().items_of(number, words)) together.push_back(std::move(item));
  }
  return together;
}

}  // namespace

Stages followers_of(const Path& path, size_t begin, const Stages& weights, Gang& gang, Templates& templates) {
  const auto together = given_together(path, begin, gang, templates);
  Stages followers = weights;
  for (size_t known = 0; known != followers.size();) {
    known = followers.size();
    for (const auto& ids : together) {
      const auto leader = std::find_if(ids.begin(), ids.end(), [&](uint64_t id) { return followers.count(id) != 0; });
      if (leader == ids.end()) continue;
      const int place = followers.at(*leader);
      for (const uint64_t id : ids) followers.emplace(id, place);
    }
  }
  return followers;
}

}  // namespace forebay::worker
