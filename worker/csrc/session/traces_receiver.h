// The tree of steps that the worker before this one had, on its way in (docs/wire.md, TRACES).
#pragma once

#include <cstdint>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/templates.h"
#include "session/image.h"
#include "tier2/segment_tracker.h"

namespace forebay::worker {

class TracesReceiver {
 public:
  // `image`: how the segments of the tree were carried out.
  TracesReceiver(SegmentTracker& segments, const ImageReceiver& image) : segments_(segments), image_(image) {}

  // The next part; the last one is empty, and fills the tree, and what was freed since its last step. Throws wire::WireError.
  void take(wire::Reader& in, Templates& templates, wire::Traces& traces, wire::Words& freed);

 private:
  SegmentTracker& segments_;
  const ImageReceiver& image_;
  std::vector<uint8_t> bytes_;
};

}  // namespace forebay::worker
