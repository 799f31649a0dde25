// What this process tells monitors of its virtual devices.
#pragma once

#include <cstdint>
#include <string>

#include "base/devices.h"

namespace forebay {

// A device has this name and size from now on. The first time the process shows itself to monitors, where the host has room for it.
void tell_flavor(c10::DeviceIndex device, const std::string& name, int64_t bytes);

void tell_memory(c10::DeviceIndex device, int64_t allocated);

void tell_lease(c10::DeviceIndex device, bool open);

// For which leases of the device were open so far.
int64_t held_ns(c10::DeviceIndex device);

bool lease_is_open(c10::DeviceIndex device);

// Monitors see this process no longer.
void withdraw_publication();

// In a child, which tells its own from here on.
void forked_publication();

}  // namespace forebay
