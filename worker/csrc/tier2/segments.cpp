#include "tier2/segments.h"

#include <string_view>
#include <utility>

namespace forebay::worker {

namespace {

using TemplateIdentity = std::function<uint64_t(uint64_t)>;

uint64_t with(uint64_t before, uint64_t number) { return wire::identity_of({reinterpret_cast<const char*>(&number), sizeof(number)}, before); }

// A path that is longer by one step.
wire::Segment longer(wire::Segment path, const wire::Step& step, const TemplateIdentity& identity) {
  const bool allocates = wire::is_allocation(step.key);
  const uint64_t value = wire::key_value(step.key);
  path.identity = with(with(path.identity, allocates), allocates ? value : identity(value));
  path.times = step.ended;
  ++(allocates ? path.allocations : path.calls);
  path.words += step.slots.size();
  path.frees += step.freed.size();
  for (const auto& slot : step.slots) {
    path.varying += slot.varies;
    path.births += slot.kind == wire::Word::kNew;
  }
  return path;
}

}  // namespace

std::vector<wire::Segment> segments_of(const wire::Traces& traces, const TemplateIdentity& identity,
                                       const std::function<wire::Standing(const wire::Step&, uint64_t)>& standing) {
  std::vector<wire::Segment> segments;
  std::vector<std::pair<const wire::Step*, wire::Segment>> open{{&traces.root(), {}}};  // a path may be as long as the tree is large
  while (!open.empty()) {
    const auto [step, path] = open.back();
    open.pop_back();
    if (path.times > 0) segments.push_back(path);
    if (path.times > 0) segments.back().standing = standing(*step, path.calls);
    for (auto next = step->next.rbegin(); next != step->next.rend(); ++next) open.emplace_back(*next, longer(path, **next, identity));
  }
  return segments;
}

}  // namespace forebay::worker
