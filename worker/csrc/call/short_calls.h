// Calls that one thread of a host carries out in less time than several take to meet.
#pragma once

#include "call/plan.h"

namespace forebay::worker {

// Whether one thread is to carry the call out, by what a usual processor would take for its arithmetic, and for what it reads and writes. It is a rule
// of the plan alone, and of no clock: several threads may round a sum otherwise, and equal calls are to give equal bits, whenever they come and whichever
// worker carries them out.
bool is_short(const Plan& plan);

}  // namespace forebay::worker
