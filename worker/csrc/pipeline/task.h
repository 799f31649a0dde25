// What one device does of a segment that several carry out as a pipeline: a call, on a part of the batch or on all of it, or what moves bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <forebay/traces.h>

#include "call/plan.h"

namespace forebay::worker {

struct Task {
  enum class Kind : uint8_t {
    kCall,
    kCopy,  // makes storages of zeros, and copies ranges of others into them
    kPass,  // sends a storage to another device
  };
  struct Made {
    uint64_t id;
    int64_t bytes;
  };
  struct Range {
    uint64_t target;
    int64_t target_offset;
    uint64_t source;
    int64_t source_offset;
    int64_t bytes;
  };

  Kind kind = Kind::kCall;
  int place = 0;               // the device
  int to = 0;                  // kPass: the other one
  size_t step = 0;             // of the segment, that it belongs to
  int64_t part = 0;            // of the batch
  double seconds = 0;
  std::vector<size_t> after;   // tasks that are done before
  std::vector<Made> makes;     // at `place`; kPass: at `to`
  std::vector<uint64_t> uses;  // at `place`
  uint64_t definition = 0;     // kCall, as the next two: of its template
  Plan* plan = nullptr;
  wire::Words words;
  std::vector<Range> ranges;   // kCopy
};

}  // namespace forebay::worker
