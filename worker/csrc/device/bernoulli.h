// Masks of dropouts on the host, several times as fast as PyTorch draws them, and the same ones.

#pragma once

namespace forebay::worker {

// From here on PyTorch draws so in this process, if what it drew here before is the same: some of its builds draw by MKL on some processors.
void draw_bernoulli_by_vectors();

}  // namespace forebay::worker
