#include "server/lease_clock.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <c10/util/Exception.h>

namespace forebay::worker {

namespace {

constexpr auto kBusyPoll = std::chrono::milliseconds(1);  // how often an accelerator is asked whether it is done

uint64_t nanoseconds(Clock::duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

void LeaseClock::open(uint64_t epoch) {
  gate_.open(epoch);
  epoch_.store(static_cast<int64_t>(epoch));
  active_at_ = Clock::now();
  touched_ = false;
  if (gate_.is_marked()) end(Event::Kind::kDrained);
}

void LeaseClock::close(uint64_t epoch, Clock::duration idle) {
  drop();
  mailbox_.report({Event::Kind::kClosed, epoch, nanoseconds(idle)});
}

void LeaseClock::end(Event::Kind kind, uint64_t number) {
  const auto epoch = gate_.shut();
  epoch_.store(-1);
  if (epoch) mailbox_.report({kind, *epoch, number});
}

void LeaseClock::drop() {
  gate_.shut();
  epoch_.store(-1);
}

void LeaseClock::starve() {
  if (gate_.starve()) mailbox_.report({Event::Kind::kStarved});
}

void LeaseClock::account() {
  memory_bytes_.store(storages_.used_bytes() - storages_.absent_bytes() + storages_.kept_bytes(), std::memory_order_relaxed);
  if (!working_) return;
  const auto now = Clock::now();
  busy_ns_.fetch_add(nanoseconds(now - working_since_), std::memory_order_relaxed);
  working_since_ = now;
}

uint64_t LeaseClock::busy_ns() {
  account();
  return busy_ns_.load(std::memory_order_relaxed);
}

void LeaseClock::rest() {
  account();
  working_ = false;
  if (!std::exchange(touched_, false)) return;
  active_at_ = Clock::now();
  device_.touched();
}

Statistics LeaseClock::statistics() const {
  const int64_t epoch = epoch_.load();
  return {epoch < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(epoch)), memory_bytes_.load(), busy_ns_.load(), commands_.load()};
}

// A device that has failed is not; what the session does on it next tells of the failure.
bool LeaseClock::is_busy() {
  try {
    return device_.busy();
  } catch (const c10::Error&) {
    return false;
  }
}

std::optional<Clock::time_point> LeaseClock::idle_check() {
  if (!gate_.is_open()) return std::nullopt;
  const auto now = Clock::now();
  if (is_busy()) {
    active_at_ = now;
    return now + kBusyPoll;
  }
  if (now - active_at_ < idle_release_) return active_at_ + idle_release_;
  end(Event::Kind::kIdle, nanoseconds(now - active_at_));
  return std::nullopt;
}

Clock::duration LeaseClock::idle_for() const { return touched_ || !gate_.is_open() ? Clock::duration{} : Clock::now() - active_at_; }

std::optional<Clock::time_point> LeaseClock::waiting_check() {
  if (!gate_.is_open()) return std::nullopt;
  const auto now = Clock::now(), since = std::max(active_at_, waiting_told_at_);
  if (now - since < idle_release_) return since + idle_release_;
  waiting_told_at_ = now;
  mailbox_.report({Event::Kind::kWaiting, *gate_.epoch(), nanoseconds(now - active_at_)});
  return now + idle_release_;
}

void LeaseClock::end_wait(bool came) {
  work();
  touched_ = came;
  if (touched_ && gate_.is_open() && waiting_told_at_ > active_at_) mailbox_.report({Event::Kind::kWorking, *gate_.epoch()});
}

}  // namespace forebay::worker
