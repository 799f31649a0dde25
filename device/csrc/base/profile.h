// Where the time of one stretch of the program went, while somebody asks for it. While nobody does, a clock is a look at one number.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/operator_info.h"

namespace forebay {

enum class Activity : uint8_t { kRecord, kLease, kItem, kRead, kSynchronize, kAsk, kUpload, kSend };

// Counts the stretch that is profiled, from 1; 0 while none is.
inline std::atomic<uint64_t> profiled_stretch{0};

// Books how long it lived, less what the clocks inside it on its thread booked.
class ActivityClock {
 public:
  ActivityClock(Activity activity, c10::DeviceIndex device, int64_t bytes = 0) : activity_(activity), device_(device), bytes_(bytes) {
    if (profiled_stretch.load(std::memory_order_relaxed) != 0) [[unlikely]] begin();
  }
  ActivityClock(const OperatorInfo& info, c10::DeviceIndex device) : activity_(Activity::kRecord), device_(device), operator_(&info) {
    if (profiled_stretch.load(std::memory_order_relaxed) != 0) [[unlikely]] begin();
  }
  ~ActivityClock() {
    if (stretch_ != 0) [[unlikely]] end();
  }
  ActivityClock(const ActivityClock&) = delete;
  ActivityClock& operator=(const ActivityClock&) = delete;

 private:
  void begin();
  void end();

  const Activity activity_;
  const c10::DeviceIndex device_;
  int64_t bytes_ = 0;
  const OperatorInfo* operator_ = nullptr;
  uint64_t stretch_ = 0;  // it runs in this one
  ActivityClock* outer_;
  std::chrono::nanoseconds inner_;
  std::chrono::steady_clock::time_point start_;
};

// Of all clocks of one device that had the same activity and the same source line, or the same operator.
struct ActivityTotal {
  c10::DeviceIndex device;
  std::string activity;
  std::string subject;   // the operator's name, or the file; empty where no line of the program was there
  int line;              // 0 for an operator
  std::string function;  // empty for an operator
  uint64_t count;
  uint64_t bytes;
  uint64_t ns;
  uint64_t longest_ns;
};

// Throws where a stretch is profiled already.
void begin_profile();
// Takes the GIL. Nothing where none is profiled.
std::vector<ActivityTotal> end_profile();

// What a device's worker says of itself: how long it has carried out commands in this session, and that a session begins.
void note_busy(c10::DeviceIndex device, uint64_t ns);
void note_session(c10::DeviceIndex device);
// Of all sessions of a device, as of the last synchronisation.
uint64_t busy_ns(c10::DeviceIndex device);

}  // namespace forebay
