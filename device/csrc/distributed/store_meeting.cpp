#include "distributed/store_meeting.h"

#include <c10/util/Exception.h>

#include <thread>
#include <vector>

#include "base/python.h"

namespace forebay {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);

}  // namespace

std::string StoreMeeting::key_of(uint64_t meeting, uint64_t rank) {
  const std::string key = "forebay/" + std::to_string(rank);
  return meeting == 0 ? key : key + "/" + std::to_string(meeting);
}

// A connection of its own: the program may wait in its store for a member that waits for this one.
c10d::Store& StoreMeeting::store() {
  const std::lock_guard lock(mutex_);
  if (!is_own_) store_ = store_->clone();
  is_own_ = true;
  return *store_;
}

void StoreMeeting::tell(uint64_t meeting, const Door& own) {
  const WithoutGil free;
  const std::string told = own.ticket + own.address;
  store().set(key_of(meeting, rank_), std::vector<uint8_t>(told.begin(), told.end()));
}

Door StoreMeeting::told_by(uint64_t meeting, uint64_t member, const std::function<void()>& pause) {
  const WithoutGil free;
  const std::string key = key_of(meeting, member);
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (!store().check({key})) {
    TORCH_CHECK(std::chrono::steady_clock::now() < until, "rank ", member, " of the process group did not come within ", patience_.count() / 1000,
                " s (init_process_group(timeout=...)); see whether its process has ended, or waits for a device");
    pause();
    std::this_thread::sleep_for(kPoll);
  }
  const auto told = store().get(key);
  TORCH_CHECK(told.size() > wire::kTicketBytes, "rank ", member, " of the process group is not on a virtual device");
  const auto ticket = told.begin() + wire::kTicketBytes;
  return {{ticket, told.end()}, {told.begin(), ticket}};
}

}  // namespace forebay
