// Failures that a worker reports. From a failing command on it executes nothing, until this side says that the program has heard of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/locations.h"
#include "bulk/deduplication.h"
#include "forebay/wire.h"
#include "stream/command_buffer.h"
#include "stream/session_state.h"
#include "stream/worker_knowledge.h"

namespace forebay {

struct ToldFailure {
  uint64_t number;      // of the failure that stopped the stream; 0: it goes on
  wire::FailureCode code;
  uint64_t sequence;    // of the call
  std::string op;
  std::string message;  // the operator's own
  std::string inputs;   // what it was given; may be empty
  uint64_t generation;  // of the session
};

// Reads a FAILURE, behind its request.
ToldFailure told_failure(wire::Reader& body, uint64_t generation);

class Failures {
 public:
  // `lose` ends the session, with a message.
  using Lose = std::function<void(const std::string&)>;

  Failures(c10::DeviceIndex device, const SessionState& session, CommandBuffer& commands, Contents& contents, Lose lose)
      : device_(device), session_(session), commands_(commands), contents_(contents), lose_(std::move(lose)) {}

  void set_knowledge(WorkerKnowledge* knowledge) { knowledge_ = knowledge; }
  WorkerKnowledge* knowledge() const { return knowledge_; }

  // Throws the failure, of which the program hears by this. A failure of the call `own` is thrown as the operator itself would throw it.
  [[noreturn]] void raise(const ToldFailure& failure, std::optional<uint64_t> own = std::nullopt);
  // The worker has stopped, and no thread waits for an answer.
  void take_notice(ToldFailure failure);
  // Throws the failure that stopped the worker if the current thread issued what failed, has lost a call by it, or no other thread took
  // notice of it.
  void check(std::optional<uint64_t> own = std::nullopt) {
    if (noticed_.load(std::memory_order_relaxed)) [[unlikely]] check_notice(own);
  }
  // Whether something that the current thread recorded was not executed, and it has not heard of that yet.
  bool has_lost();
  // The number of the last failure that the program has heard of.
  uint64_t heard() const { return heard_.load(std::memory_order_relaxed); }

  // Under the lock of the commands:

  // The current thread moves data without waiting for it. If a call before that fails, the data do not arrive.
  void note_transfer() { transfers_.insert_or_assign(current_thread(), commands_.upcoming_call()); }
  // The session has ended.
  void clear();

  // In a forked child.
  void forked();

 private:
  void hear(const ToldFailure& failure);
  void tell_others(const ToldFailure& failure);
  void forget_told(const ToldFailure& failure);
  std::string distrust(const std::string& op);
  [[gnu::cold]] void check_notice(std::optional<uint64_t> own);

  const c10::DeviceIndex device_;
  const SessionState& session_;
  CommandBuffer& commands_;
  Contents& contents_;
  const Lose lose_;
  std::atomic<WorkerKnowledge*> knowledge_{nullptr};

  std::atomic<uint64_t> heard_{0};           // changed under the lock of the commands
  std::map<ThreadTag, uint64_t> transfers_;  // by thread: how many calls came before its last one; guarded by the lock of the commands
  std::mutex mutex_;                         // guards all that follows; taken after the lock of the commands
  std::optional<ToldFailure> notice_;        // no thread has heard of it
  std::map<ThreadTag, ToldFailure> also_told_;  // to be thrown by the other threads whose calls were not executed
  std::chrono::steady_clock::time_point noticed_at_;
  std::atomic<bool> noticed_{false};  // notice_ or also_told_ holds something
};

}  // namespace forebay
