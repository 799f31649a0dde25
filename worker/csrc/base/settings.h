// How this process's device computes: PyTorch's settings, as a program has set them.
#pragma once

#include <cstdint>

namespace forebay::worker {

// `bits` of wire::Settings.
void apply_settings(uint64_t bits);

// How many threads the host's kernels take from here on. A change makes PyTorch end threads and start others, and forget kernels that it has prepared.
void set_kernel_threads(int threads);

}  // namespace forebay::worker
