// How a session comes to a worker, and goes on to the next: because it is to move, or because the worker died.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/image.h"
#include "stream/stream.h"

namespace forebay {

class Handover {
 public:
  explicit Handover(CommandStream& stream) : stream_(stream), answered_(stream.receiver_.answered()) {}

  // `tell` is called when the connection to the worker broke and it has not been reached for a while.
  void tell_cuts(std::function<void()> tell) { stream_.connection_.link().set_teller(std::move(tell)); }
  // Goes to a worker, with a session that begins, or with one that has left another worker. Throws.
  // `meeting`: as of Meetings::begin. The certificate is named by its SHA-256, in DER, as 64 hex digits.
  Welcome connect(const std::string& address, const std::string& ticket, std::optional<uint64_t> meeting, const Credentials& credentials = {});

  // Moving. Everything recorded before goes to the old worker, everything after waits for the new one, in templates and traces that begin again;
  // numbers of storages, generators and the numbers of calls stay.

  // Ends the stream at this worker: what is recorded from now on waits for the next `connect`. False if there is no worker to leave. To be called
  // by a thread that no other waits for: what was sent before may wait for a lease. Returns once the old worker has executed it. No thread
  // waits for an answer meanwhile, since that takes the same lock; nor does one that `is_torn` tells of.
  bool leave();
  // Whether a thread waits for an answer that a dead worker owed, and needs a lease at the present one for it.
  bool is_torn() const { return stream_.session_.torn > 0; }

  // A worker that dies. The next one is sent what it was sent; threads that wait for its answers wait for the next one's.

  // Whether the session goes on at the next `connect`. What is recorded from now on waits for that.
  bool break_off();
  // How many small results that were read came out otherwise when they were computed again, of how many.
  std::pair<uint64_t, uint64_t> differences();

 private:
  Welcome greet(const std::string& address, const std::string& ticket, const Credentials& credentials);
  // Whether a worker that has so much of a session that goes on must be sent what the journal holds.
  bool needs_replay(wire::Begun begun, const std::optional<wire::SessionImages>& images);
  // Sends a worker that was told nothing yet what the one before was sent; `restores`: an image first. Returns when it has done all that that one may have done.
  void replay(bool restores);
  // The worker cannot do it again: the session is lost. Throws.
  [[noreturn]] void give_up(const std::string& why);
  void end_stream(uint64_t request);
  void choose_image(CommonImages& images);
  void keep_recorded();
  void settle();
  void settle_recorded();
  // Tells the others where the new worker's door is, in place of the dead one's; and learns where theirs are.
  void tell_door(wire::Reader door);
  void await_definition(uint64_t request);
  void renew_member(wire::Writer& out, wire::Reader member);
  std::shared_ptr<MeetingPlace> place_of(uint64_t group);
  void send(const std::vector<uint8_t>& frames);

  CommandStream& stream_;
  const uint64_t answered_;  // the last request that the worker answered
};

}  // namespace forebay
