// The session leaves its worker for another. Everything recorded before goes to the old one, everything after waits for the new one, in templates
// and traces that begin anew; storage ids, generators and the numbers of calls stay.
#include <c10/util/Exception.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "python.h"
#include "recorder.h"
#include "stream.h"
#include "waiting.h"

namespace forebay {

using wire::Command;
using wire::Reply;

// To be called by a thread that nobody waits for: what was sent before may wait for a lease. Returns once the old worker has carried it
// out. Nobody waits for an answer meanwhile, since that takes the same lock.
bool CommandStream::leave() {
  const WithoutGil free;
  const std::lock_guard receive_lock(receive_mutex_);
  if (!connected_ || away_) return false;
  const uint64_t request = new_request();
  end_stream(request);
  flush(Wait::kYes);
  receive(request, [](Reply, wire::Reader&) {});
  const std::lock_guard send_lock(send_mutex_);
  ::close(socket_.exchange(-1));
  filled_ = 0;
  downloads_.clear();
  downloading_ = false;
  shared_.unmap();
  return true;
}

void CommandStream::end_stream(uint64_t request) {
  const std::lock_guard send_lock(send_mutex_);
  const std::lock_guard lock(mutex_);
  tracer_.say_frees();
  cut();
  pending_.command(Command::kLeave);
  pending_.varint(request);
  close_frame();
  due_.store(Due::kNo, std::memory_order_relaxed);
  if (uploads_.empty()) {
    outgoing_.insert(outgoing_.end(), pending_.bytes().begin(), pending_.bytes().end());
  } else {
    Upload last{};
    last.before = pending_.bytes();
    uploads_.push_back(std::move(last));
  }
  unsent_ = true;
  pending_.clear();
  frame_start_ = 0;
  tracer_.reset();
  Recorder::of(device_).forget();
  lease_open_ = false;
  away_ = true;
}

// While the session is between two workers, who wants to go on waits for the lease that comes with the new one.

std::unique_lock<std::mutex> CommandStream::lock_to_append() {
  std::unique_lock lock(mutex_);
  while (away_ || has_lost()) [[unlikely]] {
    lock.unlock();
    check_stopped();
    need_lease();
    lock.lock();
  }
  return lock;
}

std::unique_lock<std::mutex> CommandStream::lock_for(uint64_t generation) {
  auto lock = lock_to_append();
  if (generation != this->generation()) {
    lock.unlock();
    refuse_generation();
  }
  return lock;
}

std::unique_lock<std::mutex> CommandStream::lock_to_send() {
  std::unique_lock lock(send_mutex_);
  while (away_) {
    lock.unlock();
    need_lease();
    lock.lock();
  }
  return lock;
}

std::unique_lock<std::timed_mutex> CommandStream::lock_to_receive() {
  std::unique_lock lock(receive_mutex_, std::defer_lock);
  for (;;) {
    while (!lock.try_lock_for(std::chrono::milliseconds(kPollMs))) check_signals();
    if (!away_) return lock;
    lock.unlock();
    need_lease();
  }
}

}  // namespace forebay
