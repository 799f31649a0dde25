// A library of devices that Python opens: an object of forebay_worker.groups.device_library.DeviceLibrary.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "collectives/device_library.h"

namespace forebay::worker {

// With the GIL.
std::shared_ptr<DeviceLibrary> library_by_python(const pybind11::object& library);

}  // namespace forebay::worker
