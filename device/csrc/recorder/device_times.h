// When the workers carried out the calls of one stretch of the program, for PyTorch's profiler. While none is profiled a call looks at one number.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/operator_info.h"

namespace forebay {

// One call on a device. Times are nanoseconds since 1970, by this host's clock.
struct DeviceTime {
  c10::DeviceIndex device;
  std::string name;
  uint64_t correlation;  // the number that PyTorch's profiler gave the operator it was launched by; 0 for none
  int64_t start_ns;
  int64_t end_ns;
};

// Spoken to across extensions (kineto/profiler.cpp), so nothing of it is linked.
class DeviceTimes {
 public:
  virtual ~DeviceTimes() = default;
  // Throws where a stretch is timed already.
  virtual void begin() = 0;
  // Waits for all calls of the stretch, and takes what their workers say of them.
  virtual std::vector<DeviceTime> end() = 0;
  // An operator begins or ends on this thread, as PyTorch's profiler sees it.
  virtual void push(uint64_t correlation) = 0;
  virtual void pop() = 0;
};

DeviceTimes& device_times();

inline std::atomic<bool> timing_calls{false};
void remember_launch(const OperatorInfo& info, c10::DeviceIndex device, uint64_t sequence);

inline void note_launch(const OperatorInfo& info, c10::DeviceIndex device, uint64_t sequence) {
  if (timing_calls.load(std::memory_order_relaxed)) [[unlikely]] remember_launch(info, device, sequence);
}

}  // namespace forebay
