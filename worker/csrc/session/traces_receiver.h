// The tree of steps that the worker before this one had, on its way in (docs/wire.md, TRACES).
#pragma once

#include <cstdint>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "call/templates.h"

namespace forebay::worker {

class TracesReceiver {
 public:
  // The next part; the last one is empty, and fills the tree, and what was freed since its last step. Throws wire::WireError.
  void take(wire::Reader& in, Templates& templates, wire::Traces& traces, wire::Words& freed);

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace forebay::worker
