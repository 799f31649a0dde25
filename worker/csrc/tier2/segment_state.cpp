#include "tier2/segment_state.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace forebay::worker {

SegmentState after(SegmentState state, SegmentEvent event) {
  if (event == SegmentEvent::kGivenUp) return SegmentState::kStaying;
  const auto& table = segment_table::kTransitions;
  const auto found = std::find_if(table.begin(), table.end(), [&](const SegmentTransition& one) { return one.from == state && one.event == event; });
  TORCH_CHECK(found != table.end(), "event ", static_cast<int>(event), " of a segment in state ", static_cast<int>(state), ", where it cannot happen");
  return found->to;
}

}  // namespace forebay::worker
