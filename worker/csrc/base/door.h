// Lets in who shows the ticket: a client with a HELLO, or with a RESUME over another connection than before, the worker that a session moves to
// with a FETCH, or a process group's members with a MEET.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <forebay/tls.h>
#include <forebay/wire.h>

#include "base/channel.h"
#include "base/clock.h"
#include "base/socket.h"

namespace forebay::worker {

using Ticket = std::array<uint8_t, wire::kTicketBytes>;

Ticket fresh_ticket();
// Takes as long wherever the first difference is.
bool same_ticket(const uint8_t* one, const Ticket& other);

// How doors of a worker are passed.
struct Encryption {
  std::optional<TlsContext> tls;  // none: in clear
  bool is_required = false;       // else who speaks no TLS is let in, too
};

// Who has shown the ticket.
struct Guest {
  Channel channel;
  wire::Command greeting;
  Descriptor attached;    // to the greeting of a process group's member
  size_t rank = 0;        // as it says, of a process group's member
  uint64_t received = 0;  // bytes, as it says, of a client that is back
};

class Door {
 public:
  // Passed in clear.
  Door(Listener& listener, const Ticket& ticket, wire::Command greeting) : listener_(listener), ticket_(ticket), greeting_(greeting) {}
  // Clients that are back are let in as well if a HELLO is the greeting and `resumes`.
  Door(Listener& listener, const Ticket& ticket, wire::Command greeting, const Encryption& encryption, bool resumes = false)
      : listener_(listener), ticket_(ticket), greeting_(greeting), encryption_(&encryption), resumes_(resumes) {}

  // What to poll for, and until when at most.
  void add_to(std::vector<pollfd>& polled) const;
  std::optional<Clock::time_point> deadline() const;

  // Hears the peers that have something to say; returns one that has shown the ticket. Whoever else is turned away.
  std::optional<Guest> hear(Clock::time_point now);

  // What a process group's door says to whoever comes.
  static std::vector<uint8_t> banner();
  // Turns away who has shown the ticket.
  void refuse(Guest& guest, const std::string& sentence) { refuse(guest.channel, sentence); }

  // Sentences about peers that were turned away since the last call.
  std::vector<std::string> take_refusals();

 private:
  struct Peer {
    Channel channel;
    Clock::time_point deadline;
    std::vector<uint8_t> heard;
    wire::Command greeting;
    Descriptor attached;
    size_t rank = 0;
    uint64_t received = 0;
    bool is_secure = false;
  };
  enum class Verdict { kListening, kGone, kWelcome };

  void admit_peers(Clock::time_point now);
  Verdict hear(Peer& peer, Clock::time_point now);
  // Goes on with the peer's TLS, if it is to speak it. Throws wire::WireError, TlsError.
  TlsStream::Greeting secure(Peer& peer) const;
  // Throws wire::WireError. True if the greeting is complete and right.
  bool is_greeting(Peer& peer) const;
  void refuse(Channel& peer, const std::string& sentence);
  std::string name() const;

  Listener& listener_;
  Ticket ticket_;
  wire::Command greeting_;
  const Encryption* encryption_ = nullptr;
  bool resumes_ = false;
  std::vector<Peer> peers_;
  std::vector<std::string> refusals_;
};

}  // namespace forebay::worker
