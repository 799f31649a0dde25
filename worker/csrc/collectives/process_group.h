// One member of a process group: the connections to the workers of the others, and what goes over them. Knows no storage.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <forebay/spin.h>
#include <forebay/wire.h>

#include "base/door.h"
#include "base/socket.h"
#include "collectives/device_library.h"
#include "collectives/member_channel.h"

namespace forebay::worker {

// The number of the process group that a gang's workers are, at each but the first: its commands are the first one's.
constexpr uint64_t kGangGroup = 0;

// What a process group needs of the worker that it lives in.
class GroupHost {
 public:
  virtual ~GroupHost() = default;
  // Where a group's members may be let in: another address each time, but for the port of TCP.
  virtual std::string door_address() = 0;
  // Sleeps until one of these is ready, or until then; does what the pool orders meanwhile.
  virtual void wait_for(std::vector<pollfd>& polled, Clock::time_point until) = 0;
  // Returns under a lease, which may have ended during such a wait.
  void wait_for_lease() { has_lease(/*waits=*/true); }
  bool holds_lease() { return has_lease(/*waits=*/false); }
  // How long the pool is given to end this worker once another member's is gone: it does so where all go on at other workers.
  Clock::duration word_patience() const { return word_patience_; }
  // By which the device makes collectives with others. Null: it has none.
  const std::shared_ptr<DeviceLibrary>& library() const { return library_; }
  // Before there are groups.
  void collect_by(std::shared_ptr<DeviceLibrary> library) { library_ = std::move(library); }

 protected:
  virtual bool has_lease(bool waits) = 0;

  Clock::duration word_patience_{};
  std::shared_ptr<DeviceLibrary> library_;
};

// A member is gone, does not come, or does something else: the group is over.
struct GroupEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ProcessGroup {
 public:
  // `patience`: with members that neither come nor say anything. Throws std::system_error where it cannot listen.
  ProcessGroup(GroupHost& host, size_t rank, size_t size, std::chrono::milliseconds patience);

  size_t rank() const { return rank_; }
  size_t size() const { return members_.size(); }
  std::chrono::milliseconds patience() const { return patience_; }
  // With what this worker's device offers.
  std::string address() const;
  const Ticket& ticket() const { return ticket_; }
  // Where another member's door is. Throws wire::WireError for one that there is not, or that is known.
  void know(size_t member, std::string address, const Ticket& ticket);
  // Whether another member's device offers what this one's does.
  bool offers_the_same(size_t member) const { return !offer_.empty() && members_[member].offer == offer_; }

  // What both sides of a message must agree about.
  struct Subject {
    wire::Collective what;
    uint8_t dtype = 0;
    wire::Reduction reduction = wire::Reduction::kSum;
  };
  // Bytes for a member, or from it; those for itself are copied. They lie apart from each other.
  struct Parcel {
    size_t member;
    uint8_t* data;
    size_t bytes;
  };
  // Returns when all is sent and received, in order for each member. Throws GroupEnded, and whatever a wait throws.
  void exchange(const Subject& subject, const std::vector<Parcel>& sent, const std::vector<Parcel>& received);
  // As exchange, of bytes that go another way afterwards. Returns when all these members, this one among them, are at it.
  void announce(const Subject& subject, const std::vector<size_t>& members, const std::vector<Parcel>& sent, const std::vector<Parcel>& received);
  // As long as it lives, the group's waits leave the pool's orders for later. For what all members do at once.
  class Undisturbed {
   public:
    explicit Undisturbed(ProcessGroup& group) : group_(group) { group_.is_disturbed_ = false; }
    ~Undisturbed() { group_.is_disturbed_ = true; }
    Undisturbed(const Undisturbed&) = delete;
    Undisturbed& operator=(const Undisturbed&) = delete;

   private:
    ProcessGroup& group_;
  };
  // Whether a member that is met has ended the group, or is gone. For where nothing is on its way to it or from it.
  bool has_left(size_t member);
  // Throws GroupEnded, and says why if it did.
  [[noreturn]] void leave_after(size_t member);
  // The members of each host, in the order of ranks, as far as they share memory; the same at each member. All must ask at once when they first do.
  using Hosts = std::vector<std::vector<size_t>>;
  const Hosts& hosts();
  // Tells the members that are met, and throws the same at whoever uses the group from here on. A sentence that names no rank is of this one.
  void end(const std::string& why, bool names_rank = false) noexcept;

 private:
  enum class Meeting { kUnknown, kApart, kListening, kGreeted, kMet };
  struct Header;
  struct Outgoing {
    std::array<uint8_t, 24> header;
    const uint8_t* data;
    size_t bytes;
    size_t done;
  };
  struct Incoming {
    std::array<uint8_t, 24> expected;
    uint8_t* data;
    size_t bytes;
    size_t done;
  };
  struct Member {
    Meeting meeting = Meeting::kUnknown;
    std::string address;
    std::string offer;
    Ticket ticket{};
    MemberChannel channel;
    std::vector<uint8_t> heard;  // of what comes before messages
    Descriptor attached;         // to it
    uint64_t sent = 0;           // messages
    uint64_t received = 0;
    std::deque<Outgoing> outgoing;
    std::deque<Incoming> incoming;
    std::array<uint8_t, 24> header;  // of the message that is on its way in
  };

  [[noreturn]] void give_up(const std::string& why, bool names_rank);
  [[noreturn]] void lose(size_t member, const std::string& why);
  // As lose, of a member whose worker may have died.
  [[noreturn]] void miss(size_t member, const std::string& why);
  // Sleeps until one of these is ready, or until then.
  void wait_for(std::vector<pollfd>& polled, Clock::time_point until);
  // Waits until these members are met.
  void meet(const std::vector<size_t>& members);
  bool is_met(size_t number);
  void begin(size_t number);
  void hear_banner(size_t number);
  void hear_answer(size_t number);
  bool hear_exactly(size_t number, size_t bytes);
  void welcome_guests();
  // Where all have met, nobody else is to come.
  void close_door();
  void greet(size_t number, Descriptor attached);
  // Whether anything moved.
  bool move(size_t number);
  bool send_some(size_t number);
  bool receive_some(size_t number);
  void check_header(size_t number);
  // A member that has ended the group or is gone: throws, and says why if it did.
  void hear_end(size_t number);
  // Before this one sleeps: what to poll for.
  std::vector<pollfd> doze();
  // After it slept.
  void hear(size_t number, short events);
  [[noreturn]] void end_as(size_t number, const Header& told);
  bool is_done() const;
  void begin_exchange(std::vector<size_t> members);
  void deliver(const Subject& subject, const std::vector<Parcel>& sent, const std::vector<Parcel>& received);
  // A message, whose bytes follow its header or go another way.
  enum class Bytes { kFollow, kElsewhere };
  enum class Way { kOut, kIn };
  void post(Way way, Header header, const Parcel& parcel, Bytes bytes);
  void transfer();

  GroupHost& host_;
  const size_t rank_;
  const std::chrono::milliseconds patience_;
  const std::string offer_;
  Listener listener_;
  Ticket ticket_;
  Door door_;
  std::vector<Guest> guests_;  // that showed the ticket before this worker was told of them
  std::vector<Member> members_;
  std::vector<size_t> active_;  // with something to send or to receive
  Hosts hosts_;
  std::string ended_;
  bool is_disturbed_ = true;
  std::vector<Descriptor> parted_;  // from members that are to read why: closing would take it back where something unread lies
  Spinner spinner_;
};

}  // namespace forebay::worker
