// What plug-ins of other frameworks in this process are given of the virtual devices.
#pragma once

#include <pybind11/pybind11.h>

#include "forebay/device_table.h"

namespace forebay {

const DeviceTable& device_table();

// Programs call `answer(number, arrays)`, which returns a list of bytes, or the sentence why there is none.
void answer_callbacks(const pybind11::object& answer);

}  // namespace forebay
