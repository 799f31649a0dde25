#include "base/devices.h"

#include <c10/util/Exception.h>

#include <string>

namespace forebay {
namespace {

c10::DeviceIndex count = 1;
thread_local c10::DeviceIndex current = 0;

std::string devices_there_are() {
  if (count == 0) return "the virtual device is off";
  if (count == 1) return "there is one virtual device, cuda:0";
  return "there are " + std::to_string(count) + " virtual devices, cuda:0 to cuda:" + std::to_string(count - 1);
}

void check(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < count, "CUDA error: invalid device ordinal: ", devices_there_are(), "; cuda:", static_cast<int>(device),
              " does not exist", count > 0 ? " (`forebay device add` adds one)" : "");
}

}  // namespace

c10::DeviceIndex device_count() { return count; }

void set_device_count(c10::DeviceIndex wanted) {
  TORCH_CHECK(wanted >= 1 && wanted <= kDevicesMax, "a process has 1 to ", static_cast<int>(kDevicesMax), " virtual devices, not ", static_cast<int>(wanted));
  count = wanted;
}

void withdraw_devices() { count = 0; }

c10::DeviceIndex current_device() { return current; }

void set_current_device(c10::DeviceIndex device) {
  check(device);
  current = device;
}

c10::DeviceIndex device_named(std::optional<c10::Device> device) {
  const auto index = device && device->has_index() ? device->index() : current;
  check(index);
  return index;
}

}  // namespace forebay
