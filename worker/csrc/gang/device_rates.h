// What the devices of a gang and the links between them can do.
#pragma once

#include <map>

#include <c10/core/ScalarType.h>

namespace forebay::worker {

struct DeviceRates {
  std::map<c10::ScalarType, double> flops_per_s;  // of products of matrices; never empty
  double bytes_per_s = 0;                         // that a device reads and writes
  double call_s = 0;                              // of a call that does next to nothing
  double link_bytes_per_s = 0;                    // that leave a device in a sum, while as many come to it
  double link_latency_s = 0;                      // of a sum of next to nothing, and of waiting for the devices before it

  // Of a type that was not measured: as of the first one that was.
  double flops_per_s_of(c10::ScalarType type) const {
    const auto found = flops_per_s.find(type);
    return found == flops_per_s.end() ? flops_per_s.begin()->second : found->second;
  }
};

}  // namespace forebay::worker
