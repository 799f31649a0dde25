// The thread that serves one session: lets the client in, reads its commands, and carries them out while a lease is open.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <forebay/spin.h>
#include <forebay/wire.h>

#include "base/door.h"
#include "base/socket.h"
#include "collectives/process_group.h"
#include "device/device.h"
#include "server/callbacks.h"
#include "server/connection.h"
#include "server/images.h"
#include "server/lease_clock.h"
#include "server/mailbox.h"
#include "server/orders.h"
#include "server/resumption.h"
#include "session/session.h"

namespace forebay::worker {

// Where the image of a session lies that moves here.
struct ImageSource {
  std::string address;
  Ticket ticket;
  std::string certificate{};  // the hash of that worker's; empty: it is reached in clear
};

// The image that a worker before kept, in the session's folder.
struct KeptImage {
  uint64_t number;
};

// Where a session comes from that does not begin here.
using Origin = std::variant<std::monostate, ImageSource, KeptImage>;

// Bounds how fast an image comes.
class Pace {
 public:
  // 0: as fast as it does.
  void begin(int64_t bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    since_ = Clock::now();
  }
  // So many bytes came. Returns when the next ones may.
  Clock::time_point note(size_t bytes) {
    if (bytes_per_second_ == 0) return since_;
    bytes_ += static_cast<int64_t>(bytes);
    const std::chrono::duration<double> takes(static_cast<double>(bytes_) / static_cast<double>(bytes_per_second_));
    return since_ + std::chrono::duration_cast<Clock::duration>(takes);
  }

 private:
  int64_t bytes_per_second_ = 0;
  Clock::time_point since_{};
  int64_t bytes_ = 0;
};

class Server final : private GroupHost {
 public:
  // Listens at once; peers wait until `assign`. Nothing is spilled where `spill_directory` is empty. `others`: the workers of the session's other
  // devices, which are this one's alone; it computes on all. A client over TCP whose connection breaks is waited for `reconnect_seconds`.
  Server(Device device, const std::string& address, std::optional<int> threads, std::string spill_directory, std::vector<RankAddress> others, Homes homes,
         double reconnect_seconds, Encryption encryption);
  ~Server() override;

  const std::string& address() const { return listener_.address(); }
  // The hash of its certificate; empty where it speaks no TLS.
  std::string certificate() const { return encryption_.tls ? encryption_.tls->certificate() : std::string(); }

  // Before `assign`.
  using GroupHost::collect_by;
  // Before `assign`. Segments are offered for compiling; those on which the device has worked for so long are due.
  void compile(double due_seconds);
  // What the session's program may bring; to be settled before `assign`, too.
  UserCode& user_code() { return session_.user_code(); }
  // By what several devices divide their work. Set before `assign` where another session's worker has found it; to be read once it was said that the
  // session is assigned; none where there is one device.
  std::optional<DeviceRates> rates;
  // Starts the thread; once. `word_seconds`: so long a pool is given to end this worker once that of another member of a process group is gone.
  // `is_outside`: the client comes by an edge, over a Unix socket too, and is waited for where its connection breaks.
  void assign(const Ticket& ticket, int64_t limit_bytes, double idle_release_seconds, Origin origin, ImageFolder images, double word_seconds, bool is_outside);
  // In its place: fetches a session's image off the device, no faster than so, and holds it for another worker. Keeps it in the folder too, as the
  // image of this number; 0: it does not.
  void carry(ImageSource source, int64_t limit_bytes, int64_t bytes_per_second, ImageFolder images, uint64_t image);

  // From any thread. Orders are carried out at the next command boundary, in order.
  Mailbox& mailbox() { return mailbox_; }
  Statistics statistics() const { return lease_.statistics(); }
  // The number of the operator's call that is being carried out, and the operator.
  std::optional<std::pair<uint64_t, std::string>> running() { return session_.running().now(); }
  // Waits until the thread has ended, for so long at most. True if it has.
  bool join(double seconds) { return !thread_.joinable() || mailbox_.wait_for_end(seconds); }

 private:
  struct Ended {};  // the worker is to end
  struct Left {};   // the session left this worker, which holds its image from now on
  struct Obey;      // carries orders out

  void start(std::function<void()> work);
  void run(const std::function<void()>& work);
  void join_others();
  // False if this worker is to end. Orders wait, since the session is in the middle of a command.
  bool wait_for_other(int socket, short events);
  void serve(const Ticket& ticket);
  void admit(const Ticket& ticket);
  // Waits for the one who shows the ticket.
  Channel hear(Door& door);
  void converse();
  // One command, or a wait for the lease that it needs.
  void step(wire::Reader& frame);
  void mark(uint64_t epoch);
  void receive();
  // Whether the next frame is nothing but a WRITE with a large payload that has not all come.
  bool can_upload_directly() const;
  // Receives a WRITE's payload where it belongs. If that cannot be, the frame is left to be read as any other.
  void upload_directly();
  // Ends the connection with a sentence. `goes_on`: another worker could be sent what this one was sent.
  void refuse(const std::string& reason, bool goes_on = false);
  // Closing a socket while something unread lies in it could take back what was sent last.
  void linger();
  void hand_over_offers();

  // Moving: moving.cpp. Carries out a LEAVE; throws Left.
  void leave(wire::Reader& frame);
  // Answers FETCHes until the pool ends this worker.
  void hold();
  // Brings the session here. Throws wire::WireError, CommandError, std::exception.
  void fetch(const ImageSource& source);
  void fetch_frame();
  // Receives bytes of storages where they belong.
  void fetch_bytes(size_t bytes);

  void obey();
  // Sleeps until an order, or `events` at the client's socket, or the lease's idleness; obeys. While a program calls back, orders are left for later, all
  // but the end. Throws ClientLost, Ended.
  void wait(short events);
  // Waits not for what the client sends, but for its end, and for orders.
  void rest_until(Clock::time_point until);
  void poll(std::vector<pollfd>& polled, std::optional<Clock::time_point> until);
  std::string door_address() override;
  void wait_for(std::vector<pollfd>& polled, Clock::time_point until) override;
  bool has_lease(bool waits) override;

  Device device_;
  std::optional<int> threads_;
  std::string spill_directory_;
  std::string door_address_;  // as it was asked for
  std::vector<RankAddress> others_;
  Homes homes_;
  Listener listener_;
  const Encryption encryption_;
  Mailbox mailbox_;
  Connection connection_;
  Resumption resumption_;
  Session session_;
  LeaseClock lease_;
  Callbacks callbacks_{connection_, [this] { wait(POLLIN); }};
  Images images_{session_, mailbox_, connection_};
  Pace pace_;            // of an image that comes
  Spinner spinner_;      // waits for what a client does with an answer
  Spinner bulk_spinner_; // waits for a piece of bulk data
  bool is_outside_ = false;
  bool holding_ = false; // the image of a session that left
  uint64_t doors_ = 0;   // of process groups, so far
  std::thread thread_;
};

}  // namespace forebay::worker
