// How long a call takes on one device, as its operator's arithmetic and the bytes that it reads and writes say.
#pragma once

#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

#include "gang/device_rates.h"

namespace forebay::worker {

double seconds_of(const wire::Template& call, const c10::OperatorHandle& op, const DeviceRates& rates);

}  // namespace forebay::worker
