// Members of a process group meet by the store that the group was made with.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/meetings.h"

namespace forebay {

class StoreMeeting final : public MeetingPlace {
 public:
  // `patience`: with members that do not come.
  StoreMeeting(c10::intrusive_ptr<c10d::Store> store, uint64_t rank, std::chrono::milliseconds patience) : store_(std::move(store)), rank_(rank), patience_(patience) {}

  void tell(uint64_t meeting, const Door& own) override;
  Door told_by(uint64_t meeting, uint64_t member, const std::function<void()>& pause) override;

 private:
  static std::string key_of(uint64_t meeting, uint64_t rank);
  c10d::Store& store();

  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_own_ = false;  // no other thread waits in it
  const uint64_t rank_;
  const std::chrono::milliseconds patience_;
};

}  // namespace forebay
