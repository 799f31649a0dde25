// The virtual devices that a monitor is shown: those of its own process, else what all processes of the person have together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "page.h"

namespace forebay::monitoring {

struct Program {
  uint32_t process;
  int64_t allocated;  // bytes
};

struct Sight {
  std::string name = "Forebay (virtual)";
  int64_t total = 0;  // bytes; 0: no process has heard of it yet
  int64_t used = 0;
  int64_t held_ns = 0;
  bool held = false;  // now
  std::vector<Program> programs{};  // that computed on it
};

// How many devices a process has here: as its page says, else as the environment or the person's settings say.
size_t device_count();

Sight sight_of(size_t device);

}  // namespace forebay::monitoring
