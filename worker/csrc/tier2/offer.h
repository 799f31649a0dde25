// What a session tells the processes that compile for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "tier2/candidate.h"
#include "tier2/library.h"

namespace forebay::worker {

// A segment that may get a library.
struct SegmentDescribed {
  uint64_t segment;
  std::string description;
  bool is_steady;  // its session waits until it is known whether it has a library
};
// The device has worked on the segment long enough for a library to be worthwhile.
struct SegmentDue {
  uint64_t segment;
  std::optional<SegmentCosts> costs;  // of one that has no turns, so what a library takes of its time is foretold
};
// The segment's library is wrong, or failed.
struct LibraryRejected {
  uint64_t segment;
  std::string why;
};
// A library for several sizes gains too little for this segment, which is to get its own.
struct LibraryDeclined {
  uint64_t segment;
  std::string why;
};
// What the segment's library takes of tier 1's time; none if it is not quicker.
struct LibraryTimed {
  uint64_t segment;
  std::optional<double> ratio;
};
// The session knows the segment no more. Whoever takes the offer closes the library that the segment had, if any.
struct SegmentForgotten {
  uint64_t segment;
  std::shared_ptr<Library> library;
};
// A kernel of the program, as its client describes it.
struct KernelDefined {
  uint64_t kernel;
  std::string description;
};
// The session leaves: its libraries are to be packed for another worker.
struct SessionLeaves {};
// The session came from another worker, with these libraries.
struct LibrariesImported {
  std::string libraries;
};

using Offer = std::variant<SegmentDescribed, SegmentDue, LibraryRejected, LibraryDeclined, LibraryTimed, SegmentForgotten, KernelDefined, SessionLeaves, LibrariesImported>;

}  // namespace forebay::worker
