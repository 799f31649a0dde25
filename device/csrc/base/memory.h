// Memory of the virtual devices as this process asked for it, in bytes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace forebay {

struct MemoryUse {
  int64_t allocated;
  int64_t peak;
  int64_t allocations;
  int64_t frees;
  int64_t alive;
};

MemoryUse memory_use(c10::DeviceIndex device);
int64_t allocated_memory(c10::DeviceIndex device);
void reset_peak_memory(c10::DeviceIndex device);

// A storage was made, freed or resized.
void count_allocation(c10::DeviceIndex device, int64_t bytes);
void count_free(c10::DeviceIndex device, int64_t bytes);
void count_resize(c10::DeviceIndex device, int64_t more_bytes);

// How much of the flavor's bytes the program lets itself have. What it has already stays.
void set_memory_fraction(c10::DeviceIndex device, double fraction, int64_t flavor_bytes);
double memory_fraction(c10::DeviceIndex device);
// Throws OutOfMemoryError if that many bytes more pass the fraction. `limit`: the flavor's bytes, wire::kStorageBytesMax while no lease has
// told them.
void check_fraction(c10::DeviceIndex device, int64_t bytes, int64_t limit);

// Has monitors show the device's flavor and the memory of all devices.
void publish_flavor(c10::DeviceIndex device, const std::string& name, int64_t bytes);

}  // namespace forebay
