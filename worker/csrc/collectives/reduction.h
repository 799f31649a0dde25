// Sums, means and the like over the members of a process group: each of them reduces an equal part in the order of ranks, so all get the same bits.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <forebay/wire.h>

#include "collectives/process_group.h"

namespace forebay::worker {

// `data`: in host memory, in one dimension, without gaps; as long on all members. It becomes the reduction of all of theirs.
// Throws GroupEnded; c10::Error where its type cannot be reduced so.
void all_reduce(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& data);

// As all_reduce, of several: small ones of a kind travel together.
struct Reduced {
  wire::Reduction reduction;
  at::Tensor data;
};
void all_reduce_each(ProcessGroup& group, const std::vector<Reduced>& each);

// `input`: as many times as long as `result` as there are members; the part of this one's rank, reduced over all, is the result, which may lie in that part.
void reduce_scatter(ProcessGroup& group, const ProcessGroup::Subject& subject, const at::Tensor& input, const at::Tensor& result);

}  // namespace forebay::worker
