// Which line of the user's program issued a call: cheap to note for each, looked up only when one fails.
#pragma once

#include <c10/core/Device.h>

#include <compare>
#include <cstdint>
#include <string>

struct PyCodeObject;  // Python.h is for those who look into it

namespace forebay {

// Tells a thread from all others of the process, also from those that have ended; one that computes gradients counts as the last one that
// did not. From 1.
using ThreadTag = uint64_t;
ThreadTag current_thread();

// Notes the current thread for a device's call number `sequence`. Under the stream's lock: nobody hears of a call's failure before.
void note_thread(c10::DeviceIndex device, uint64_t sequence);

// Notes the innermost frame of the current thread that is not library code, for a call whose thread was noted.
// A thread without Python frames (autograd's) notes what the last thread with some did. May take the GIL.
void note_location(c10::DeviceIndex device, uint64_t sequence);

// The thread that noted a call; 0 where it is no longer known.
ThreadTag thread_of(c10::DeviceIndex device, uint64_t sequence);

// "file.py, line 12, in train", or an empty string where it is no longer known. Takes the GIL.
std::string location_of(c10::DeviceIndex device, uint64_t sequence);

// An instruction of the user's program; none where only library code was there.
struct Place {
  PyCodeObject* code = nullptr;
  int instruction = 0;

  auto operator<=>(const Place&) const = default;
};

struct Line {
  std::string file;
  int number = 0;
  std::string function;
};

// Where the current thread is; for one without Python frames where the last call was noted.
Place current_place();

// Takes the GIL.
Line line_of(const Place& place);

}  // namespace forebay
