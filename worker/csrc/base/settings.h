// How this process's accelerator computes: PyTorch's settings, as a program has set them.
#pragma once

#include <cstdint>

namespace forebay::worker {

// `bits` of wire::Settings.
void apply_settings(uint64_t bits);

}  // namespace forebay::worker
