// How the program wants its device to compute: what it has set of PyTorch.
#pragma once

#include <cstdint>

namespace forebay {

// Bits of wire::Settings, as they are now.
uint64_t program_settings();
// Whether FOREBAY_LAUNCH_BLOCKING has each call wait for its worker.
bool waits_for_each_call();
// Whether libraries of what repeats may carry it out: unless FOREBAY_COMPILE=0.
bool uses_libraries();
// Whether they are made and timed while the program goes on: FOREBAY_COMPILE=1. When they begin to serve is then a matter of their times.
bool compiles_at_once();
// Whether workers may let go of what calls made and compute it again where memory is short: FOREBAY_RECOMPUTE=1.
bool asks_for_recomputation();
// The bits that a host's device is told: those that it heeds, the others as in the beginning.
uint64_t host_settings();

}  // namespace forebay
