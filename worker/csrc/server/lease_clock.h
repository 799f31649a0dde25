// The lease as the thread that serves a session sees it: whether device work may run, how long it ran, and what the pool must hear of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "device/device.h"
#include "device/storage.h"
#include "server/gate.h"
#include "server/mailbox.h"

namespace forebay::worker {

// As other threads may ask for it.
struct Statistics {
  std::optional<uint64_t> epoch;
  int64_t memory_bytes;
  uint64_t busy_ns;
  uint64_t commands;
};

class LeaseClock {
 public:
  LeaseClock(Device& device, const Storages& storages, Mailbox& mailbox) : device_(device), storages_(storages), mailbox_(mailbox) {}

  // A lease that was idle for so long is given back.
  void release_after(Clock::duration idle) { idle_release_ = idle; }

  bool is_open() const { return gate_.is_open(); }
  void open(uint64_t epoch);
  // The pool closes the lease; nothing was carried out for so long.
  void close(uint64_t epoch, Clock::duration idle);
  // Ends the lease, if one is open, and tells the pool.
  void end(Event::Kind kind, uint64_t number = 0);
  // Ends it, and says nothing.
  void drop();
  // The span of the lease ends that the pool is still to open.
  void mark(uint64_t epoch) { gate_.mark(epoch); }
  // Device work waits for a lease: the pool hears of it once.
  void starve();

  // Device work begins or goes on; `touch`: it is the client's.
  void work() {
    if (working_) return;
    working_ = true;
    working_since_ = Clock::now();
  }
  void touch() { touched_ = true; }
  void count_command() { commands_.store(commands_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  // Brings what `statistics` says up to date.
  void account();
  // Nothing is left to carry out for now.
  void rest();
  uint64_t busy_ns();
  Statistics statistics() const;

  // How long nothing has been carried out; nothing if no lease is open.
  Clock::duration idle_for() const;
  // Says `Idle` when it is time; returns when to ask again.
  std::optional<Clock::time_point> idle_check();
  // In a collective: says `Waiting` each time so long has passed; returns when to ask again.
  std::optional<Clock::time_point> waiting_check();
  // Something came that a collective waited for, or nothing.
  void end_wait(bool came);

 private:
  bool is_busy();

  Device& device_;
  const Storages& storages_;
  Mailbox& mailbox_;
  Gate gate_;
  Clock::duration idle_release_{};
  Clock::time_point active_at_{};        // when device work last ended
  Clock::time_point waiting_told_at_{};  // when the pool was last told of a wait in a collective
  Clock::time_point working_since_{};
  bool working_ = false;
  bool touched_ = false;                 // device work of the client since active_at_
  std::atomic<int64_t> epoch_{-1};       // of the open lease; -1 if none is
  std::atomic<int64_t> memory_bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
  std::atomic<uint64_t> commands_{0};
};

}  // namespace forebay::worker
