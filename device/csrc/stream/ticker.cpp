#include "stream/ticker.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace forebay {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 50us;
constexpr auto kReadingTick = 1000us;  // while the program reads from tick to tick
constexpr auto kBusyTick = 250us;      // while the worker has not read what it was sent: it has enough to do
constexpr int kIdleTicks = 40;         // after these the thread sleeps until something is recorded
constexpr uint64_t kListenTicks = 8;   // with something to send, before it looks whether the worker has stopped
constexpr auto kRest = 100ms;          // longer than most programs wait for a step's results

}  // namespace

void Ticker::start() {
  if (!runs_.exchange(true)) std::thread([this] { run(); }).detach();
}

bool Ticker::has_work() {
  const std::lock_guard lock(commands_.mutex());
  return (!session_.away && commands_.has_commands()) || sender_.has_unsent();
}

void Ticker::say_frees() {
  const std::lock_guard lock(commands_.mutex());
  commands_.tracer().say_frees();
}

// Each wake-up takes the processor from another thread, on a small host from the worker itself.
void Ticker::run() {
  ::pthread_setname_np(::pthread_self(), "forebay-send");
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  int idle = 0;
  uint64_t ticks = 0;
  auto tick = kTick;
  for (uint64_t asked = 0;;) {
    const bool worker_is_busy = session_.connected && connection_.has_unread();
    std::this_thread::sleep_for(std::max(tick, worker_is_busy ? kBusyTick : kTick));
    // A thread that reads sends what was recorded before it.
    const uint64_t before = std::exchange(asked, counters_.questions.load(std::memory_order_relaxed));
    tick = asked == before ? kTick : std::min(tick * 2, kReadingTick);
    if (session_.connected && has_work()) {
      idle = 0;
      try {
        sender_.flush(Wait::kNo);
        if (++ticks % kListenTicks == 0) receiver_.listen();
      } catch (const std::exception&) {
        continue;  // the next call that reads or records says so
      }
    } else if (++idle > kIdleTicks || counters_.is_asking()) {
      idle = 0;
      wakeup_.begin_sleep();
      if (has_work()) {  // recorded just before it could know that the thread sleeps
        wakeup_.cancel_sleep();
        continue;
      }
      if (!wakeup_.sleep(kRest) && session_.connected) say_frees();
    }
  }
}

}  // namespace forebay
