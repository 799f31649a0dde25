#include "server/resumption.h"

#include <algorithm>
#include <string>

namespace forebay::worker {

void Resumption::begin(const Ticket& ticket) {
  door_.emplace(listener_, ticket, wire::Command::kHello, encryption_, /*resumes=*/true);
  away_since_.reset();
}

void Resumption::note_absence() {
  if (connection_.is_there()) {
    if (away_since_) mailbox_.report({Event::Kind::kClientBack});
    away_since_.reset();
  } else if (!away_since_) {
    mailbox_.report({Event::Kind::kClientAway});
    away_since_ = Clock::now();
  }
}

void Resumption::add_to(std::vector<pollfd>& polled, std::optional<Clock::time_point>& until) {
  if (!door_) return;
  note_absence();
  door_->add_to(polled);
  const auto sooner = [&until](Clock::time_point time) { until = until ? std::min(*until, time) : time; };
  if (away_since_) sooner(*away_since_ + grace_);
  if (const auto deadline = door_->deadline()) sooner(*deadline);
}

void Resumption::hear(const std::vector<pollfd>& polled, size_t first) {
  if (!door_) return;
  const auto now = Clock::now();
  const auto begin = polled.begin() + static_cast<std::ptrdiff_t>(first);
  const bool knocked = std::any_of(begin, polled.end(), [](const pollfd& one) { return one.revents != 0; });
  if (knocked || door_->deadline().value_or(now) < now) {
    while (auto guest = door_->hear(now)) take(std::move(*guest));
    for (auto& sentence : door_->take_refusals()) mailbox_.report({Event::Kind::kRefused, 0, 0, 0, std::move(sentence)});
  }
  note_absence();
  if (away_since_ && now - *away_since_ >= grace_) throw ClientLost();
}

void Resumption::take(Guest guest) {
  try {
    if (guest.greeting == wire::Command::kResume) {
      connection_.resume(guest.channel, guest.received);
    } else if (connection_.is_untouched()) {
      connection_.admit(std::move(guest.channel));
      welcome_();
    } else {
      throw wire::WireError("the session has begun already");
    }
  } catch (const wire::WireError& error) {
    door_->refuse(guest, error.what());
  }
}

}  // namespace forebay::worker
