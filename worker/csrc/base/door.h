// Lets in who shows the ticket: a client with a HELLO, the worker that a session moves to with a FETCH, or a process group's members with a MEET.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <forebay/wire.h>

#include "base/clock.h"
#include "base/socket.h"

namespace forebay::worker {

using Ticket = std::array<uint8_t, wire::kTicketBytes>;

Ticket fresh_ticket();
// Takes as long wherever the first difference is.
bool same_ticket(const uint8_t* one, const Ticket& other);

// Who has shown the ticket.
struct Guest {
  Descriptor socket;
  size_t rank = 0;  // as it says, of a process group's member
};

class Door {
 public:
  Door(Listener& listener, const Ticket& ticket, wire::Command greeting) : listener_(listener), ticket_(ticket), greeting_(greeting) {}

  // What to poll for, and until when at most.
  void add_to(std::vector<pollfd>& polled) const;
  std::optional<Clock::time_point> deadline() const;

  // Hears the peers that have something to say; returns one that has shown the ticket. Whoever else is turned away.
  std::optional<Guest> hear(Clock::time_point now);

  // What a process group's door says to whoever comes.
  static std::vector<uint8_t> banner();

  // Sentences about peers that were turned away since the last call.
  std::vector<std::string> take_refusals();

 private:
  struct Peer {
    Descriptor socket;
    Clock::time_point deadline;
    std::vector<uint8_t> heard;
    size_t rank = 0;
  };
  enum class Verdict { kListening, kGone, kWelcome };

  void admit_peers(Clock::time_point now);
  Verdict hear(Peer& peer, Clock::time_point now);
  // Throws wire::WireError. True if the greeting is complete and right.
  bool is_greeting(Peer& peer) const;
  void refuse(const Peer& peer, const std::string& sentence);
  std::string name() const;

  Listener& listener_;
  Ticket ticket_;
  wire::Command greeting_;
  std::vector<Peer> peers_;
  std::vector<std::string> refusals_;
};

}  // namespace forebay::worker
