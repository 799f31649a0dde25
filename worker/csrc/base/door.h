// Lets in who shows the ticket: a client with a HELLO, or with a RESUME over another connection than before, the worker that a session moves to
// with a FETCH, or a process group's members with a MEET.
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
  wire::Command greeting;
  size_t rank = 0;        // as it says, of a process group's member
  uint64_t received = 0;  // bytes, as it says, of a client that is back
};

class Door {
 public:
  // Clients that are back are let in as well if a HELLO is the greeting and `resumes`.
  Door(Listener& listener, const Ticket& ticket, wire::Command greeting, bool resumes = false)
      : listener_(listener), ticket_(ticket), greeting_(greeting), resumes_(resumes) {}

  // What to poll for, and until when at most.
  void add_to(std::vector<pollfd>& polled) const;
  std::optional<Clock::time_point> deadline() const;

  // Hears the peers that have something to say; returns one that has shown the ticket. Whoever else is turned away.
  std::optional<Guest> hear(Clock::time_point now);

  // What a process group's door says to whoever comes.
  static std::vector<uint8_t> banner();
  // Turns away who has shown the ticket.
  void refuse(const Guest& guest, const std::string& sentence) { refuse(guest.socket, sentence); }

  // Sentences about peers that were turned away since the last call.
  std::vector<std::string> take_refusals();

 private:
  struct Peer {
    Descriptor socket;
    Clock::time_point deadline;
    std::vector<uint8_t> heard;
    wire::Command greeting;
    size_t rank = 0;
    uint64_t received = 0;
  };
  enum class Verdict { kListening, kGone, kWelcome };

  void admit_peers(Clock::time_point now);
  Verdict hear(Peer& peer, Clock::time_point now);
  // Throws wire::WireError. True if the greeting is complete and right.
  bool is_greeting(Peer& peer) const;
  void refuse(const Descriptor& peer, const std::string& sentence);
  std::string name() const;

  Listener& listener_;
  Ticket ticket_;
  wire::Command greeting_;
  bool resumes_;
  std::vector<Peer> peers_;
  std::vector<std::string> refusals_;
};

}  // namespace forebay::worker
