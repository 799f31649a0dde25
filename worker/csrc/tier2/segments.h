// The segments that came, as the tree of steps has them.
#pragma once

#include <functional>
#include <vector>

#include <forebay/segments.h>
#include <forebay/traces.h>

namespace forebay::worker {

// Those that came to an end, in the order of the tree. `identity` gives what stands for a template, by its number; `standing` how a segment
// of so many calls is carried out that ends with such a step.
std::vector<wire::Segment> segments_of(const wire::Traces& traces, const std::function<uint64_t(uint64_t)>& identity,
                                       const std::function<wire::Standing(const wire::Step&, uint64_t)>& standing);

}  // namespace forebay::worker
