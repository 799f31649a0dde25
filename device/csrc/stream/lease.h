// The lease under which a device computes, and how a thread waits for it.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "forebay/wire.h"
#include "stream/session_state.h"

namespace forebay {

class Lease {
 public:
  Lease(c10::DeviceIndex device, const SessionState& session) : device_(device), session_(session) {}

  // `callback` blocks until a lease is open, or throws.
  void set_callback(std::function<void()> callback) { callback_ = std::move(callback); }
  // Returns once a lease is open; throws if the device has none to draw from, or in a signal handler that interrupts a wait.
  void need() {
    if (!open_.load(std::memory_order_acquire)) [[unlikely]] wait();
  }
  bool is_open() const { return open_.load(std::memory_order_relaxed); }

  void open(uint64_t epoch, int64_t memory_bytes);
  void close();
  // As close, but monitors still see it. Whether it was open.
  bool stop() {
    stop_clock();
    return open_.exchange(false);
  }
  // The session has ended, and with it what its flavor allowed.
  void reset();

  // For how long leases were open so far.
  std::chrono::nanoseconds worked() const;

  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  // Bytes that the flavor allows; wire::kStorageBytesMax until a lease has said it.
  int64_t memory_limit() const { return memory_limit_.load(std::memory_order_relaxed); }

  // In a forked child.
  void forked();

 private:
  void wait();
  void stop_clock();

  const c10::DeviceIndex device_;
  const SessionState& session_;
  std::atomic<bool> open_{false};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int64_t> opened_ns_{0};  // of the steady clock; 0: none is open
  std::atomic<int64_t> worked_ns_{0};  // under those that were
  std::atomic<int64_t> memory_limit_{wire::kStorageBytesMax};
  std::function<void()> callback_;
  std::mutex waiting_;  // held by the thread that waits for the callback
};

}  // namespace forebay
