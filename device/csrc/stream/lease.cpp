#include "stream/lease.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <new>

#include "base/profile.h"
#include "base/publication.h"
#include "base/python.h"
#include "base/waiting.h"

namespace forebay {
namespace {

int64_t steady_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void Lease::open(uint64_t epoch, int64_t memory_bytes) {
  memory_limit_.store(memory_bytes, std::memory_order_relaxed);
  epoch_.store(epoch, std::memory_order_relaxed);
  stop_clock();
  opened_ns_ = steady_ns();
  open_.store(true, std::memory_order_release);
  tell_lease(device_, true);
}

void Lease::close() {
  stop_clock();
  open_.store(false, std::memory_order_release);
  tell_lease(device_, false);
}

void Lease::stop_clock() {
  const int64_t opened_ns = opened_ns_.exchange(0);
  if (opened_ns != 0) worked_ns_ += steady_ns() - opened_ns;
}

std::chrono::nanoseconds Lease::worked() const {
  const int64_t opened_ns = opened_ns_;
  return std::chrono::nanoseconds(worked_ns_ + (opened_ns == 0 ? 0 : steady_ns() - opened_ns));
}

void Lease::reset() {
  close();
  memory_limit_ = wire::kStorageBytesMax;
}

void Lease::wait() {
  TORCH_CHECK(!session_.forked, "the virtual device cannot be used in a forked process; start processes with the 'spawn' method");
  TORCH_CHECK(callback_, "the virtual device has no service to draw from; set FOREBAY_URL, or use `forebay run`");
  thread_local bool waiting = false;
  TORCH_CHECK(!waiting, "a signal handler cannot use the virtual device while the program it interrupts waits for it; set a flag there, and act on it afterwards");
  refuse_in_signal_handler();
  const ActivityClock profiled(Activity::kLease, device_);
  const WithoutGil free;
  const std::lock_guard lock(waiting_);
  if (open_.load(std::memory_order_acquire)) return;
  waiting = true;
  const auto done = c10::make_scope_exit([] { waiting = false; });
  call_python(callback_);
}

void Lease::forked() {
  new (&waiting_) std::mutex;
  open_ = false;
}

}  // namespace forebay
