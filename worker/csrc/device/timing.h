// When each call was carried out, while a client wants to know (TIME). Otherwise a call looks at one number.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Event.h>
#include <forebay/wire.h>

#include "device/device.h"

namespace forebay::worker {

class Timing {
 public:
  explicit Timing(const Device& device) : device_(device) {}

  // Notes the next `calls` ones, and drops what was noted.
  void begin(size_t calls);
  bool is_noting() const { return left_ > 0; }
  void enter();
  void leave(uint64_t sequence);
  // Writes the present time and what was noted since the last time (docs/wire.md, TIMES).
  void tell(wire::Writer& out);

 private:
  struct Note {
    uint64_t sequence;
    uint64_t start_ns;  // of this host's monotonic clock
    uint64_t took_ns;
  };
  // A call that was handed to an accelerator, whose own clock times it.
  struct Pending {
    uint64_t sequence;
    c10::Event start;
    c10::Event end;
  };

  c10::Event mark() const;
  void give_up();
  void read_clock();

  const Device& device_;
  size_t left_ = 0;
  uint64_t start_ns_ = 0;               // of the present call, on the host
  std::vector<c10::Event> started_;     // of the present call, on an accelerator: one or none
  std::vector<c10::Event> origin_;      // as `started_`: when the accelerator had done all before
  uint64_t origin_ns_ = 0;
  std::vector<Pending> pending_;
  std::vector<Note> notes_;
};

// Lives while a call is carried out.
class TimedCall {
 public:
  TimedCall(Timing& timing, uint64_t sequence) : timing_(timing), sequence_(sequence), noted_(timing.is_noting()) {
    if (noted_) [[unlikely]] timing_.enter();
  }
  ~TimedCall() {
    if (noted_) [[unlikely]] timing_.leave(sequence_);
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Timing& timing_;
  const uint64_t sequence_;
  const bool noted_;
};

}  // namespace forebay::worker
