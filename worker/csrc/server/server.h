// The thread that serves one session: lets the client in, reads its commands, and carries them out while a lease is open.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <forebay/spin.h>
#include <forebay/wire.h>

#include "base/door.h"
#include "base/inbox.h"
#include "base/socket.h"
#include "collectives/process_group.h"
#include "device/device.h"
#include "server/gate.h"
#include "session/session.h"

namespace forebay::worker {

// What the pool must hear; which numbers mean something depends on the kind.
struct Event {
  enum class Kind { kAssigned, kConnected, kDrained, kIdle, kStarved, kParked, kRestored, kLeft, kFetched, kWaiting, kWorking, kClosed, kClientGone, kRefused, kFailed };
  Kind kind;
  uint64_t epoch = 0;    // kDrained, kIdle, kWaiting, kWorking, kClosed
  uint64_t number = 0;   // kIdle, kWaiting, kClosed: nanoseconds without work; kParked, kLeft: bytes
  uint64_t spilled = 0;  // kParked, kLeft: bytes of them that are on disk
  std::string text{};    // kLeft: address and ticket of the image, with a space between; kRefused, kFailed
};

// Where the image of a session lies that moves here.
struct ImageSource {
  std::string address;
  Ticket ticket;
};

struct Statistics {
  std::optional<uint64_t> epoch;
  int64_t memory_bytes;
  uint64_t busy_ns;
  uint64_t commands;
};

class Server final : private Replies, private GroupHost {
 public:
  // Listens at once; peers wait until `assign`. Nothing is spilled where `spill_directory` is empty. `others`: the workers of the session's other
  // devices, which are this one's alone; it computes on all.
  Server(Device device, const std::string& address, std::optional<int> threads, std::string spill_directory, std::vector<RankAddress> others, Homes homes);
  ~Server() override;

  const std::string& address() const { return listener_.address(); }

  // Orders, from any thread; carried out at the next command boundary, in order.
  void assign(const Ticket& ticket, int64_t limit_bytes, double idle_release_seconds, std::optional<ImageSource> source);  // starts the thread; once
  // In its place: fetches a session's image off the device, no faster than so, and holds it for another worker.
  void carry(ImageSource source, int64_t limit_bytes, int64_t bytes_per_second);
  void open(uint64_t epoch, int64_t limit_bytes);
  void close(uint64_t epoch);
  void park(int64_t host_bytes, int64_t spill_bytes);
  void restore();
  void end();

  // Tier 2. Segments are offered for compiling from now on, before `assign`; those on which the device has worked for so long are due.
  void compile(double due_seconds);
  std::vector<Offer> take_offers();
  // The library of the segment of this number, with what is to be said of it; `is_shared`: it is for several sizes. Loads it at once; throws
  // std::exception where that cannot be.
  void give_library(uint64_t number, const std::string& path, const std::string& note, bool is_shared, std::optional<double> took);
  void refuse_library(uint64_t number, const std::string& why);
  void widen_segment(uint64_t number, const WordPlaces& changing);
  // As the session leaves: libraries that go along, of kLibrariesBytesMax at most.
  void take_along(std::string libraries);

  // Kernels of programs: session_kernels.h. Before `assign`.
  void take_kernels(KernelHost host);
  // The kernel of this number is compiled and loaded. Throws std::invalid_argument for parameters that are none.
  void give_kernel(uint64_t number, const std::string& name, const std::string& parameters);
  void refuse_kernel(uint64_t number, wire::FailureCode code, const std::string& why);

  // Becomes readable when `take_events` or `take_offers` has something.
  int event_descriptor() const { return events_bell_.get(); }
  std::vector<Event> take_events();
  Statistics statistics() const;
  // The number of the operator's call that is being carried out, and the operator.
  std::optional<std::pair<uint64_t, std::string>> running() const;
  // Waits until the thread has ended, for so long at most. True if it has.
  bool join(double seconds);

 private:
  struct Order {
    enum class Kind { kOpen, kClose, kPark, kRestore, kEnd, kLibrary, kWiden, kAlong, kKernel, kNoKernel };
    Kind kind;
    uint64_t epoch = 0;       // kLibrary, kWiden, kKernel, kNoKernel: a number
    int64_t limit_bytes = 0;  // kNoKernel: the code of the failure
    ParkingSpace space{};
    std::shared_ptr<Library> library{};  // kLibrary: none where there will be none, and why
    std::string why{};  // kKernel: its name; kLibrary: why there is none, or what is to be said of it; kAlong: libraries
    std::vector<KernelParameter> parameters{};
    bool is_shared = false;  // kLibrary
    std::optional<double> took{};  // kLibrary
    WordPlaces changing{};         // kWiden
  };
  struct Ended {};       // `end` was called
  struct ClientLost {};  // the connection is over
  struct Left {};        // the session left this worker, which holds its image from now on

  void order(Order order);
  void start(std::function<void()> work);
  void run(const std::function<void()>& work);
  void join_others();
  bool wait_for_other(int socket, short events);
  void serve(const Ticket& ticket);
  void admit(const Ticket& ticket);
  Descriptor hear(Door& door);
  void welcome();
  void converse();
  void step(wire::Reader& frame);
  void mark(uint64_t epoch);
  void receive();
  bool can_upload_directly() const;
  void upload_directly();
  void refuse(const std::string& reason);
  void linger();

  // Moving: moving.cpp. Carries out a LEAVE; throws Left.
  void leave(wire::Reader& frame);
  // Answers FETCHes until the pool ends this worker.
  void hold();
  // Brings the session here. Throws wire::WireError, CommandError, std::exception.
  void fetch(const ImageSource& source);
  void fetch_frame();
  void fetch_bytes(size_t bytes);
  void keep_pace(size_t bytes);

  void obey();
  void obey(const Order& order);
  void shut(Event::Kind kind, uint64_t number = 0);
  void tell(Event event);
  void hand_over_offers();

  // Sleeps until an order, or `events` at the client's socket, or the lease's idleness; obeys. Throws ClientLost, Ended.
  void wait(short events);
  void rest_until(Clock::time_point until);
  void poll(std::vector<pollfd>& polled, std::optional<Clock::time_point> until);
  bool is_busy();
  std::optional<Clock::time_point> idle_check();
  Clock::duration idle_for() const;
  std::optional<Clock::time_point> waiting_check();
  std::string door_address() override;
  void wait_for(std::vector<pollfd>& polled, Clock::time_point until) override;
  void wait_for_lease() override;
  void work();
  void account();
  void rest();

  void send(const wire::Writer& head, const void* payload, size_t payload_bytes) override;
  bool can_share() const override { return listener_.is_unix(); }
  uint64_t busy_ns() override;
  void share(const wire::Writer& head, int descriptor) override;
  void send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor);

  Device device_;
  std::optional<int> threads_;
  std::string spill_directory_;
  std::string door_address_;  // as it was asked for
  std::vector<RankAddress> others_;
  Homes homes_;
  Listener listener_;
  Descriptor client_;
  Session session_;
  Gate gate_;
  Inbox inbox_;
  std::thread thread_;

  // Of the serving thread alone.
  Clock::duration idle_release_{};
  Clock::time_point active_at_{};     // when device work last ended
  Clock::time_point waiting_told_at_{};  // when the pool was last told of a wait in a collective
  Clock::time_point working_since_{};
  bool working_ = false;
  bool touched_ = false;              // device work since active_at_
  Spinner spinner_;                   // waits for what a client does with an answer
  Spinner bulk_spinner_;              // waits for a piece of bulk data
  Clock::time_point answered_at_{};   // when the client was last sent something
  bool holding_ = false;              // the image of a session that left
  int64_t bytes_per_second_ = 0;      // at which an image may come; 0: as fast as it does
  Clock::time_point fetching_since_{};
  int64_t fetched_bytes_ = 0;
  uint64_t doors_ = 0;                // of process groups, so far

  // Shared.
  mutable std::mutex mutex_;
  std::vector<Order> orders_;
  std::vector<Event> events_;
  std::vector<Offer> offers_;
  bool ended_ = false;
  std::condition_variable ended_signal_;
  std::atomic<bool> ordered_{false};
  Bell orders_bell_;
  Bell end_bell_;  // rings for good once it is to end
  Bell events_bell_;
  std::atomic<int64_t> epoch_{-1};
  std::atomic<int64_t> memory_bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
  std::atomic<uint64_t> commands_{0};
};

}  // namespace forebay::worker
