// What is to be done with a segment that repeats the next time it comes, and what changes that.
#pragma once

#include <array>
#include <cstdint>

namespace forebay::worker {

enum class SegmentState : uint8_t {
  kDescribing,  // it is described for a compiler, or recorded as graphs
  kAwaiting,    // tier 1 carries it out while it has no library
  kArrived,     // its library is there, and waits until it is known how many threads tier 1 is quicker with
  kVerifying,   // its library or its graphs are compared with tier 1
  kWeighing,    // its library is timed against tier 1, with all steps there
  kTiming,      // its library or its graphs are timed against tier 1, from end to end
  kServing,     // its library or its graphs carry it out
  kStaying,     // tier 1 carries it out for good
};

enum class SegmentEvent : uint8_t {
  kDescribed,
  kWidened,         // numbers that were constant change, here or in another session
  kLibraryArrived,
  kThreadsKnown,    // it is known how many threads tier 1 is quicker with
  kRecorded,        // as graphs
  kVerified,        // as often as it takes; by a library
  kGraphsVerified,  // as kVerified, by graphs, which are always lighter to hand over
  kVerifiedKnown,   // as kVerified, and it is known that tier 2 is quicker
  kLighter,         // a library takes less working time than tier 1
  kQuicker,         // tier 2 takes less time than tier 1 from end to end
  kShareFailed,     // a library for several sizes is wrong, or too slow, for this one
  kRecheck,         // it has been served often enough to be verified again
  kReconsider,      // as kRecheck, and that it is quicker was found in another session
  kGraphsDropped,   // they are of no use any more
  kGivenUp,
};

struct SegmentTransition {
  SegmentState from;
  SegmentEvent event;
  SegmentState to;
};

// All that can happen, but for kGivenUp, which leads from each state to kStaying. docs/reference/compiled.md shows the same table.
namespace segment_table {
using enum SegmentState;
using enum SegmentEvent;
inline constexpr std::array kTransitions{
    SegmentTransition{kDescribing, kDescribed, kAwaiting},
    SegmentTransition{kDescribing, kRecorded, kVerifying},
    SegmentTransition{kDescribing, kGraphsDropped, kDescribing},
    SegmentTransition{kAwaiting, kLibraryArrived, kArrived},
    SegmentTransition{kAwaiting, kWidened, kDescribing},
    SegmentTransition{kArrived, kThreadsKnown, kVerifying},
    SegmentTransition{kVerifying, kVerified, kWeighing},
    SegmentTransition{kVerifying, kGraphsVerified, kTiming},
    SegmentTransition{kVerifying, kVerifiedKnown, kServing},
    SegmentTransition{kVerifying, kWidened, kDescribing},
    SegmentTransition{kVerifying, kShareFailed, kAwaiting},
    SegmentTransition{kVerifying, kGraphsDropped, kDescribing},
    SegmentTransition{kWeighing, kLighter, kTiming},
    SegmentTransition{kWeighing, kWidened, kDescribing},
    SegmentTransition{kWeighing, kShareFailed, kAwaiting},
    SegmentTransition{kTiming, kQuicker, kServing},
    SegmentTransition{kTiming, kWidened, kDescribing},
    SegmentTransition{kTiming, kShareFailed, kAwaiting},
    SegmentTransition{kTiming, kGraphsDropped, kDescribing},
    SegmentTransition{kServing, kRecheck, kVerifying},
    SegmentTransition{kServing, kReconsider, kArrived},
    SegmentTransition{kServing, kWidened, kDescribing},
    SegmentTransition{kServing, kShareFailed, kAwaiting},
    SegmentTransition{kServing, kGraphsDropped, kDescribing},
};
}  // namespace segment_table

// The state that the event leads to. Throws c10::Error for an event that cannot happen then.
SegmentState after(SegmentState state, SegmentEvent event);

// Whether tier 2 is timed against tier 1, by turns.
inline bool is_timed(SegmentState state) { return state == SegmentState::kWeighing || state == SegmentState::kTiming; }
// Whether tier 2 is compared with tier 1, by its results or its time.
inline bool is_compared(SegmentState state) { return state == SegmentState::kVerifying || is_timed(state); }

}  // namespace forebay::worker
