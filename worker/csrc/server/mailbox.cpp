#include "server/mailbox.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace forebay::worker {

namespace {

// Which one the order tells whether it has a library; none if it does not.
std::optional<uint64_t> segment_of(const Order& order) {
  return std::visit(
      [](const auto& one) -> std::optional<uint64_t> {
        if constexpr (requires { one.segment; }) return one.segment;
        return std::nullopt;
      },
      order);
}

}  // namespace

void Mailbox::order(Order order) {
  if (std::holds_alternative<orders::End>(order)) end_bell_.ring();
  {
    const std::lock_guard guard(mutex_);
    orders_.push_back(std::move(order));
    ordered_.store(true, std::memory_order_release);
    ordered_signal_.notify_all();
  }
  orders_bell_.ring();
}

std::vector<Order> Mailbox::take_orders() {
  orders_bell_.silence();
  const std::lock_guard guard(mutex_);
  ordered_.store(false, std::memory_order_release);
  return std::exchange(orders_, {});
}

std::optional<Order> Mailbox::wait_for_answer(uint64_t segment, std::chrono::nanoseconds patience) {
  std::unique_lock lock(mutex_);
  auto found = orders_.end();
  ordered_signal_.wait_for(lock, patience, [&] {
    found = std::find_if(orders_.begin(), orders_.end(), [&](const Order& order) { return segment_of(order) == segment || std::holds_alternative<orders::End>(order); });
    return found != orders_.end();
  });
  if (found == orders_.end() || std::holds_alternative<orders::End>(*found)) return std::nullopt;
  Order answer = std::move(*found);
  orders_.erase(found);
  return answer;
}

std::vector<Event> Mailbox::take_events() {
  events_bell_.silence();
  const std::lock_guard guard(mutex_);
  return std::exchange(events_, {});
}

std::vector<Offer> Mailbox::take_offers() {
  const std::lock_guard guard(mutex_);
  return std::exchange(offers_, {});
}

void Mailbox::report(Event event) {
  {
    const std::lock_guard guard(mutex_);
    events_.push_back(std::move(event));
  }
  events_bell_.ring();
}

void Mailbox::offer(std::vector<Offer> offers) {
  {
    const std::lock_guard guard(mutex_);
    offers_.insert(offers_.end(), std::make_move_iterator(offers.begin()), std::make_move_iterator(offers.end()));
  }
  events_bell_.ring();
}

void Mailbox::note_end() {
  const std::lock_guard guard(mutex_);
  ended_ = true;
  ended_signal_.notify_all();
}

bool Mailbox::wait_for_end(double seconds) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> most = std::chrono::hours(24 * 365);
  return ended_signal_.wait_for(lock, std::min(std::chrono::duration<double>(seconds), most), [this] { return ended_; });
}

}  // namespace forebay::worker
