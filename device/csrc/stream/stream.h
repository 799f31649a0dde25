// The command stream of one virtual device: what is recorded is sent in order, in the background; reads wait for their answer.
//
// Locks are taken in this order: the receiver's, the sender's, that of Contents, that of the commands, that of the failures.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/waiting.h"
#include "bulk/deduplication.h"
#include "bulk/shared_memory.h"
#include "forebay/image.h"
#include "forebay/wire.h"
#include "stream/command_buffer.h"
#include "stream/connection.h"
#include "stream/downloads.h"
#include "stream/failures.h"
#include "replay/images.h"
#include "replay/journal.h"
#include "stream/lease.h"
#include "stream/receiver.h"
#include "stream/sender.h"
#include "stream/session_state.h"
#include "stream/ticker.h"
#include "stream/wakeup.h"
#include "stream/worker_knowledge.h"

namespace forebay {

// What a worker says of itself.
struct Welcome {
  std::string torch;
  std::string kind;
  std::string model;
  uint64_t memory_limit;
  std::string no_kernels;  // why it takes no kernels of programs; empty if it does
  bool keeps_images;       // that outlive it
  bool keeps_checkpoints;
  bool copies_checkpoints;   // as images of other sessions
  bool carries_checkpoints;  // in images and moves
  std::optional<wire::SessionImages> images{};  // none: its release does not tell of them
};

// The last fork.
struct LastFork {
  uint64_t checkpoint = 0;  // with which the child's session begins; 0: it has no copy
  uint64_t changes = 0;     // CommandBuffer::changes, once that was taken
};

// What this side goes by.
struct WorkerTraits {
  std::atomic<bool> is_cpu{false};
  // It computes by the kernels that PyTorch has for GPUs, or stands for a device that does: not if its back end is out of PyTorch's tree.
  std::atomic<bool> is_gpu{false};
  std::atomic<bool> keeps_checkpoints{false};
  std::atomic<bool> copies_checkpoints{false};
  std::atomic<bool> carries_checkpoints{false};
  std::atomic<bool> tells_images{false};
  std::atomic<uint64_t> kind{0};  // a hash of the kind of device and its PyTorch
  std::string no_kernels;         // as in Welcome; guarded by the lock of the commands
};

class CommandStream {
 public:
  static CommandStream& of(c10::DeviceIndex device);
  explicit CommandStream(c10::DeviceIndex device);

  c10::DeviceIndex device() const { return device_; }
  const SessionState& session() const { return session_; }
  bool connected() const { return session_.connected.load(); }
  uint64_t generation() const { return session_.generation.load(std::memory_order_relaxed); }
  void check_generation(uint64_t generation) {
    if (generation != this->generation()) [[unlikely]] refuse_generation();
  }
  const WorkerTraits& worker() const { return worker_; }
  void set_knowledge(WorkerKnowledge* knowledge) { failures_.set_knowledge(knowledge); }

  // Session.
  // Ends the session: its tensors are lost.
  void lose(const std::string& message);
  // Keeps what is sent from a session's beginning on, so that it goes on at another worker if its own dies: so many bytes at most. Has workers keep
  // images, from which another goes on, each after so much work.
  void set_journal(uint64_t bytes_max, double image_seconds) {
    journal_bytes_max_ = bytes_max;
    images_.set_interval(image_seconds);
  }

  // Lease.
  Lease& lease() { return lease_; }
  void open_lease(uint64_t epoch, int64_t memory_bytes);
  // Ends the lease behind all that was recorded. False if none was open.
  bool mark();

  // Recording.
  CommandBuffer& commands() { return commands_; }
  Contents& contents() { return contents_; }
  // The first of so many new numbers of storages.
  uint64_t new_storages(uint64_t count) { return next_storage_.fetch_add(count, std::memory_order_relaxed); }
  // The lock of the commands. Waits while the session is between two workers, and throws if the current thread has yet to hear of a failure.
  std::unique_lock<std::mutex> lock_to_append();
  // As lock_to_append, for commands about storages of a generation; throws if that has ended.
  std::unique_lock<std::mutex> lock_for(uint64_t generation);
  // Records a command that ends a segment and is counted as a call, unless `append` returns false and has written nothing.
  bool record(uint64_t generation, const std::function<bool(wire::Writer&)>& append);
  // Sends if much is pending; outside the lock.
  void send_if_due() {
    if (commands_.due() != CommandBuffer::Due::kNo) [[unlikely]] send_due();
  }

  // Waiting.
  void synchronize() { await(std::nullopt); }
  // Waits for the call of this number, which the current thread has just recorded: its failure is thrown as the operator itself would.
  void finish(uint64_t sequence) { await(sequence); }
  void check_stopped(std::optional<uint64_t> own = std::nullopt) { failures_.check(own); }
  // Appends by `append(request)` under the lock, which returns the number of a call, and gives the answer's body to `take`.
  void ask(uint64_t generation, const std::function<uint64_t(uint64_t)>& append, const std::function<void(wire::Reader&)>& take);
  // Asks by a command that needs no lease: `append` writes it behind the number of its request. `take` gets the answer.
  void ask_aside(wire::Command command, const std::function<void(wire::Reader&)>& take, const std::function<void(wire::Writer&)>& append = {});
  // As ask_aside, unless `append` returns false and has written nothing. `take` gets failures as well.
  bool ask_aside(const std::function<bool(wire::Writer&, uint64_t request)>& append, const Receiver::Take& take,
                 AskedCommand::Kind kind = AskedCommand::Kind::kAside);

  const StreamCounters& counters() const { return counters_; }

 private:
  friend class Checkpoints;
  friend class Conversation;
  friend class Forks;
  friend class Handover;
  friend class ImageRounds;
  friend class Transfers;

  // A wait for an answer, from before it is asked for: without the GIL, under the lease and the receiver's lock, counted and timed.
  class Question {
   public:
    // `own`: the call that is waited for.
    explicit Question(CommandStream& stream, std::optional<uint64_t> own = std::nullopt);
    ~Question();
    // Under the lock of the commands, with the append of the command whose answer says that all before it is done.
    void settles();
    // Waits for an answer by `wait`, again where the connection breaks meanwhile and another takes its place.
    void receive(const std::function<void()>& wait) { stream_.receive(lock_, wait); }
    // It was answered, and no failure is left to report.
    void settled() { settled_ = true; }

   private:
    const WithoutGil free_;
    const WaitClock clock_;
    CommandStream& stream_;
    std::unique_lock<std::timed_mutex> lock_;
    bool settled_ = true;
  };

  void await(std::optional<uint64_t> own);
  void send_due();
  uint64_t new_request() { return next_request_.fetch_add(1); }
  std::unique_lock<std::mutex> lock_to_send();
  // `is_torn`: of a thread that had it, and lost its worker.
  std::unique_lock<std::timed_mutex> lock_to_receive(bool is_torn = false);
  void receive(std::unique_lock<std::timed_mutex>& lock, const std::function<void()>& wait);
  bool goes_on() const { return session_.connected && journal_.may_be_whole(); }
  // Throws if the answer is a failure.
  void check_answer(wire::Reply reply, wire::Reader& body, std::optional<uint64_t> own = std::nullopt);
  [[noreturn]] void refuse_generation();
  [[noreturn]] void fail_connection(const std::string& reason, bool gone);
  void abandon(const std::string& message);
  void forked();

  const c10::DeviceIndex device_;
  SessionState session_;
  StreamCounters counters_;
  WorkerTraits worker_;
  LastFork last_fork_;        // guarded by the lock of the commands
  std::string lost_message_;  // guarded by the lock of the commands
  std::atomic<uint64_t> next_storage_{1};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> journal_bytes_max_{0};
  std::atomic<bool> settling_{false};  // a thread waits for an answer that says that all before it is done

  Lease lease_{device_, session_};
  Wakeup wakeup_;
  CommandBuffer commands_{device_, counters_, wakeup_};
  Contents contents_;
  SharedMemory shared_;  // mapped and unmapped while both locks are held
  Failures failures_{device_, session_, commands_, contents_, [this](const std::string& message) { lose(message); }};
  Connection connection_{counters_, [this](const std::string& reason, bool gone) { fail_connection(reason, gone); }};
  Journal journal_;
  Images images_{counters_.images};
  Sender sender_{session_, counters_, connection_, commands_, shared_, contents_, journal_, images_, lease_};
  Downloads downloads_{counters_};
  Receiver receiver_{session_, connection_, shared_, failures_, downloads_, images_};
  Ticker ticker_{session_, counters_, connection_, commands_, sender_, receiver_, wakeup_};
};

}  // namespace forebay
