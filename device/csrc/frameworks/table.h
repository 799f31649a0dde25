// What plug-ins of other frameworks in this process are given of the virtual devices.
#pragma once

#include "forebay/device_table.h"

namespace forebay {

const DeviceTable& device_table();

}  // namespace forebay
