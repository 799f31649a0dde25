// How the program wants its device to compute: what it has set of PyTorch.
#pragma once

#include <cstdint>

namespace forebay {

// Bits of wire::Settings, as they are now.
uint64_t program_settings();

}  // namespace forebay
