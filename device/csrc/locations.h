// Which line of the user's program issued a call: cheap to note for each, looked up only when one fails.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace forebay {

// Notes the innermost frame of the current thread that is not library code, for a device's call number `sequence`.
// A thread without Python frames (autograd's) notes what the last thread with some did.
void note_location(c10::DeviceIndex device, uint64_t sequence);

// "file.py, line 12, in train", or an empty string where it is no longer known. Takes the GIL.
std::string location_of(c10::DeviceIndex device, uint64_t sequence);

}  // namespace forebay
