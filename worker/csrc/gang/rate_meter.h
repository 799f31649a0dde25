// Measures what the devices of a gang and the links between them can do.
#pragma once

#include "device/device.h"
#include "gang/device_rates.h"
#include "gang/gang.h"

namespace forebay::worker {

// Measures what all devices do at the same time, by the first one's clock, and sums of all of them: some hundred milliseconds. The session has done nothing yet, and no lease
// is open. Throws RankLost. Of devices that compute nothing: round numbers.
DeviceRates measured_rates(Gang& gang, const Device& device);

}  // namespace forebay::worker
