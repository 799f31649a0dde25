// How long a session's devices computed together and alone, as the first one's worker measures it: the time that it spends on calls, with what it
// moves for them. What it waits for is the work of the call before the wait.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/gang_work.h>

namespace forebay::worker {

class GangWork {
 public:
  // Lives while other devices, or this one, are waited for.
  class Wait {
   public:
    explicit Wait(GangWork& work);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    GangWork& work_;
    const uint64_t since_ns_;
  };

  // Nanoseconds; stands still in a wait.
  uint64_t clock() const;

  wire::Work& divided() { return divided_; }
  wire::Work& copies() { return copies_; }
  wire::Work& alone(const c10::OperatorHandle& op, wire::Alone reason);
  // That were spent on calls.
  uint64_t worked_ns() const { return worked_ns_; }
  // A call that began at so much of `clock`; returns what that is now.
  uint64_t book(wire::Work& work, uint64_t since_ns);

  wire::GangWork told(uint64_t devices) const;

 private:
  uint64_t waited_ns_ = 0;
  uint64_t worked_ns_ = 0;
  wire::Work divided_, copies_;
  std::map<std::pair<const c10::FunctionSchema*, wire::Alone>, wire::Work> alone_;
  wire::Work* last_ = nullptr;  // that was booked to
};

}  // namespace forebay::worker
