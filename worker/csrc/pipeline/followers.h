// What the steps after a pipeline use together with weights, as gradients and an optimizer's states, and what they use together with those: it lies best where
// the weights do.
#pragma once

#include <cstddef>

#include "call/templates.h"
#include "gang/gang.h"
#include "pipeline/stages.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// By storage, whether it is there or the segment makes it: the device of the weight. Of a segment's steps from `begin` on.
Stages followers_of(const Path& path, size_t begin, const Stages& weights, Gang& gang, Templates& templates);

}  // namespace forebay::worker
