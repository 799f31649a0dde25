// Another device of this session's gang: the connection to the worker process that computes on it, as that worker's client.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <forebay/spin.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/door.h"
#include "base/failure.h"
#include "base/inbox.h"
#include "base/socket.h"
#include "device/remote_memory.h"

namespace forebay::worker {

// Where the worker of another device listens, and what it is shown.
struct RankAddress {
  std::string address;
  Ticket ticket;
};

// The other worker is gone or broke the protocol: the session is over. A WireError, so that nothing takes it for the failure of a command.
struct RankLost : wire::WireError {
  using wire::WireError::WireError;
};

// An operator or a template as it goes over the wire; a number is known to whoever defined it.
struct Definition {
  uint64_t op = 0;              // of a template: the number of its operator
  std::vector<uint8_t> encoded; // what follows the opcode; of a template: what follows the operator's number
};

class Rank {
 public:
  // Returns when the socket is ready for `events`, at once without a socket. False where this worker is to end.
  using Wait = std::function<bool(int socket, short events)>;

  // `number`: of the device among the gang's, from 1.
  Rank(int number, RankAddress where, Wait wait) : number_(number), where_(std::move(where)), wait_(std::move(wait)) {}

  int number() const { return number_; }
  int64_t used_bytes() const { return used_bytes_; }
  int socket() const { return socket_.get(); }
  const std::string& address() const { return where_.address; }
  // Throws RankLost.
  [[noreturn]] void lose(const std::string& why) const;
  // Throws RankLost where this worker is to end.
  void heed() const { wait(-1, 0); }
  // CALLs so far, and what counts as one.
  uint64_t calls() const { return calls_; }

  // Throws RankLost where nobody listens there in time, or the ticket is refused.
  void connect();

  // Commands, carried out in order: sent at the latest when somebody waits for the other worker. They throw RankLost.
  void call(uint64_t number, const Definition& definition, uint64_t op, const Definition& op_definition, const std::vector<wire::Word>& kinds,
            const wire::Words& words);
  void forget();
  void renumber();
  void settings(uint64_t bits);
  // What the device may hold; memory that nothing holds there goes back to it.
  void limit(int64_t bytes);
  void allocate(uint64_t id, int64_t bytes);
  void free(uint64_t id) { freed_.push_back(id); }
  void write(uint64_t id, int64_t offset, const uint8_t* data, int64_t bytes);
  void copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes);
  void flush();

  // Takes or gives back the bytes of a storage there.
  void count(int64_t bytes) { used_bytes_ += bytes; }

  // Waits until all is carried out. The failure after which nothing was, whose `sequence` is a call's number among those sent here, from 0:
  // the next command is carried out again.
  std::optional<Failure> settle();
  // Bytes of a storage there, and where they go.
  struct Range {
    uint64_t id;
    int64_t offset;
    int64_t bytes;
    uint8_t* target;
  };
  // Throws RankLost where one cannot be read. All must be settled.
  void read(const std::vector<Range>& ranges);

  // Process groups of the other worker's, as the commands DOOR, MEMBER, REDUCE_EACH, EXCHANGE and PART say. They throw RankLost.
  // Where it lets the others in. All must be settled.
  RankAddress open_door(uint64_t group, size_t rank, size_t size, uint64_t patience_ms);
  void member(uint64_t group, size_t rank, const RankAddress& where);
  struct Reduction {
    uint8_t dtype;
    wire::Reduction reduction;
    uint64_t id;
    int64_t bytes;
  };
  void reduce_each(uint64_t group, const std::vector<Reduction>& each);
  // Messages to other members of a group, or from them.
  struct Message {
    size_t member;
    uint64_t id;
    int64_t bytes;
  };
  void exchange(uint64_t group, const std::vector<Message>& sent, const std::vector<Message>& received);
  void part(uint64_t group);

 private:
  void say(wire::Command command);
  void put_freed();
  void send(const uint8_t* payload = nullptr, size_t bytes = 0);
  // The next frame; valid until the one after it is asked for.
  wire::Reader receive();
  void receive_data(uint64_t request, uint8_t* target, size_t bytes);
  void wait(int socket, short events) const;

  int number_;
  RankAddress where_;
  Wait wait_;
  Descriptor socket_;
  Inbox inbox_;
  bool holds_frame_ = false;  // the inbox's first one was handed out
  Spinner spinner_;
  wire::Writer out_;
  std::vector<uint64_t> freed_;  // said before the next command
  bool settled_ = true;
  uint64_t request_ = 0;
  uint64_t calls_ = 0;
  int64_t used_bytes_ = 0;
  std::optional<int64_t> limit_bytes_;  // as it was told
  std::unordered_map<uint64_t, uint64_t> operators_;  // the numbers that the other worker knows them by
  std::unordered_map<uint64_t, uint64_t> templates_;
};

// A storage's memory on another device of the gang; it is freed with this.
class RankMemory final : public RemoteMemory {
 public:
  // `made` by a call there; else it is allocated, and holds zeros.
  RankMemory(Rank& rank, uint64_t id, int64_t bytes, bool made) : rank_(rank), id_(id), bytes_(bytes) {
    if (!made) rank_.allocate(id, bytes);
    rank_.count(bytes_);
  }
  ~RankMemory() override {
    rank_.free(id_);
    rank_.count(-bytes_);
  }
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  int place() const override { return rank_.number(); }

 private:
  Rank& rank_;
  uint64_t id_;
  int64_t bytes_;
};

}  // namespace forebay::worker
