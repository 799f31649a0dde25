// What goes between the thread that serves a session and all others: orders in, events and offers out.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "server/orders.h"
#include "tier2/offer.h"

namespace forebay::worker {

// What the pool must hear; which numbers mean something depends on the kind.
struct Event {
  enum class Kind { kAssigned, kConnected, kDrained, kIdle, kStarved, kParked, kRestored, kLeft, kFetched, kKept, kCopied, kWaiting, kWorking, kClosed, kClientAway, kClientBack, kClientGone, kRefused, kFailed };
  Kind kind;
  uint64_t epoch = 0;    // kKept, kLeft: the image's number; kDrained, kIdle, kWaiting, kWorking, kClosed
  uint64_t number = 0;   // kIdle, kWaiting, kClosed: nanoseconds without work; kParked, kLeft, kKept, kCopied: bytes
  uint64_t spilled = 0;  // kParked, kLeft: bytes of them that are on disk
  std::string text{};    // kLeft: address and ticket of the image, with a space between; kCopied: the other session, a space, and why it was not; kRefused, kFailed
};

class Mailbox {
 public:
  // From any thread.
  void order(Order order);
  std::vector<Event> take_events();
  std::vector<Offer> take_offers();
  // Becomes readable when there are events or offers.
  int event_descriptor() const { return events_bell_.get(); }
  // Waits until the serving thread has ended, for so long at most. True if it has.
  bool wait_for_end(double seconds);

  // From the serving thread alone.
  // What is ordered of this segment, taken out of all other orders; none if nothing is within that time, or the worker is to end.
  std::optional<Order> wait_for_answer(uint64_t segment, std::chrono::nanoseconds patience);
  bool has_orders() const { return ordered_.load(std::memory_order_acquire); }
  std::vector<Order> take_orders();
  // Becomes readable when there are orders; and, for good, once the worker is to end.
  int order_descriptor() const { return orders_bell_.get(); }
  int end_descriptor() const { return end_bell_.get(); }
  void report(Event event);
  void offer(std::vector<Offer> offers);
  void note_end();

 private:
  mutable std::mutex mutex_;
  std::vector<Order> orders_;
  std::vector<Event> events_;
  std::vector<Offer> offers_;
  bool ended_ = false;
  std::condition_variable ended_signal_;
  std::condition_variable ordered_signal_;
  std::atomic<bool> ordered_{false};
  Bell orders_bell_;
  Bell end_bell_;  // rings for good once the worker is to end
  Bell events_bell_;
};

}  // namespace forebay::worker
