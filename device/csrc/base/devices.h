// The virtual devices of this process, and which of them is a thread's current one.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace forebay {

constexpr c10::DeviceIndex kDevicesMax = 16;

c10::DeviceIndex device_count();

// To be called once, before any other use. Throws unless 1 <= count <= kDevicesMax.
void set_device_count(c10::DeviceIndex count);

// From here on there is none: what cannot be had in full is not there at all.
void withdraw_devices();

c10::DeviceIndex current_device();

// Throws where there is no such device.
void set_current_device(c10::DeviceIndex device);

// As a program names a device: cuda without a number is the current one. Throws where there is no such device.
c10::DeviceIndex device_named(std::optional<c10::Device> device);

// Makes a device the current one for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(current_device()) { set_current_device(device); }
  ~OnDevice() { set_current_device(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
};

}  // namespace forebay
