// Waits at the worker's door for a client whose connection broke, so long and no longer.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/door.h"
#include "server/connection.h"
#include "server/mailbox.h"

namespace forebay::worker {

class Resumption {
 public:
  // A client is waited for `grace`; zero: not at all. `welcome` greets one whose first connection broke before it heard the greeting.
  Resumption(Listener& listener, const Encryption& encryption, Connection& connection, Mailbox& mailbox, Clock::duration grace, std::function<void()> welcome)
      : listener_(listener), encryption_(encryption), connection_(connection), mailbox_(mailbox), grace_(grace), welcome_(std::move(welcome)) {}

  Clock::duration grace() const { return grace_; }
  // It is waited for so long, if it is waited for at all, and that is longer.
  void wait_for(Clock::duration grace) {
    if (grace_ > Clock::duration{}) grace_ = std::max(grace_, grace);
  }
  // The client is there, and whoever shows its ticket from now on takes its place.
  void begin(const Ticket& ticket);
  void end() {
    door_.reset();
    connection_.resume_no_more();
  }

  // What to poll for, and until when at most, unless `until` is sooner.
  void add_to(std::vector<pollfd>& polled, std::optional<Clock::time_point>& until);
  // After that: `first` is where what was added begins. Lets the client in that is back. Throws ClientLost once it was away for too long.
  void hear(const std::vector<pollfd>& polled, size_t first);

 private:
  void take(Guest guest);
  void note_absence();

  Listener& listener_;
  const Encryption& encryption_;
  Connection& connection_;
  Mailbox& mailbox_;
  Clock::duration grace_;
  const std::function<void()> welcome_;
  std::optional<Door> door_;
  std::optional<Clock::time_point> away_since_;
};

}  // namespace forebay::worker
