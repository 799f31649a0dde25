// How long a call takes on one device, as its operator's arithmetic and the bytes that it reads and writes say.
#pragma once

#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

namespace forebay::worker {

// What devices and the links between them can do.
struct DeviceRates {
  double flops_per_s;
  double bytes_per_s;
  double call_s;  // of a call that does next to nothing
  double link_bytes_per_s;
  double link_latency_s;
};

double seconds_of(const wire::Template& call, const c10::OperatorHandle& op, const DeviceRates& rates);

}  // namespace forebay::worker
