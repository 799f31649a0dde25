// ATen's hooks for CUDA, and host memory that says it is pinned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay {

void install_hooks();
// What the program says is pinned memory, or no longer. Whether it was not, or was, before.
bool pin_memory(uintptr_t address, size_t bytes);
bool unpin_memory(uintptr_t address);

}  // namespace forebay
