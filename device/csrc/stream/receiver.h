// The answers of a worker. All under `mutex()`, unless it says otherwise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "bulk/shared_memory.h"
#include "forebay/spin.h"
#include "forebay/wire.h"
#include "replay/answers.h"
#include "stream/connection.h"
#include "stream/downloads.h"
#include "stream/failures.h"
#include "replay/images.h"
#include "stream/session_state.h"

namespace forebay {

class Receiver {
 public:
  using Take = std::function<void(wire::Reply, wire::Reader&)>;

  Receiver(const SessionState& session, Connection& connection, const SharedMemory& shared, Failures& failures, Downloads& downloads, Images& images)
      : session_(session), connection_(connection), shared_(shared), failures_(failures), downloads_(downloads), images_(images) {}

  // Taken before the sender's.
  std::timed_mutex& mutex() { return mutex_; }

  // A connection begins, for a session of this generation, of which small answers are kept, or not.
  void begin(uint64_t generation, bool keeps_answers);
  // A connection begins, for a session that goes on.
  void resume() { filled_ = 0; }
  // Of the session at the other end.
  uint64_t generation() const { return generation_; }

  // The last request that was answered.
  uint64_t answered() const { return answered_; }
  void set_answered(uint64_t request) { answered_ = request; }
  const Answers& answers() const { return answers_; }
  void begin_comparison() { answers_.begin_comparison(); }
  // Passes over what has come of answers to requests up to `answered`, without waiting.
  void pass_over(uint64_t answered);

  // Waits for the next frame, whatever it is.
  void receive_first(const Take& take);
  // Waits for the answer to a request.
  void receive(uint64_t request, const Take& take);
  // Whether the next frame is the answer to the request; any other is dealt with.
  bool receive_one(uint64_t request, const Take& take);
  // Waits for the answer to a READ, and puts its data where they belong. Returns how long the worker has been busy, in nanoseconds.
  // Nothing if the next frame is not that answer: it is left for receive_one.
  std::optional<uint64_t> receive_data(uint64_t request, uint8_t* target, size_t bytes);
  // Takes the lock. Looks whether the worker has stopped, or kept an image, without waiting; leaves anything else.
  void listen();

  // Whether the worker has said since this was asked last that it has dropped checkpoints. At any time.
  bool take_dropped_checkpoints() { return has_dropped_checkpoints_.exchange(false); }

  // In a forked child.
  void forked() {
    new (&mutex_) std::timed_mutex;
    new (&incoming_) std::vector<uint8_t>;
    new (&answers_) Answers;
    filled_ = 0;
    has_dropped_checkpoints_ = false;
  }

 private:
  void receive_frame();
  [[noreturn]] void refused(wire::Reader& body);
  void take_other(uint64_t request, wire::Reply reply, wire::Reader& body);
  // What answers no request. False if it is nothing of the kind.
  bool take_unasked(wire::Reply reply, wire::Reader& body);
  void fill(size_t bytes);
  size_t receive_some(uint8_t* target, size_t bytes);
  bool has_whole_frame();
  wire::Reader body() const { return {incoming_.data() + wire::kFrameHeaderBytes, filled_ - wire::kFrameHeaderBytes}; }

  const SessionState& session_;
  Connection& connection_;
  const SharedMemory& shared_;
  Failures& failures_;
  Downloads& downloads_;
  Images& images_;

  std::timed_mutex mutex_;
  std::vector<uint8_t> incoming_;  // a frame, of which the first `filled_` bytes have come
  size_t filled_ = 0;
  Spinner spinner_;       // waits for an answer
  Spinner bulk_spinner_;  // waits for a piece of bulk data
  std::atomic<bool> has_dropped_checkpoints_{false};
  uint64_t generation_ = 0;
  uint64_t answered_ = 0;
  Answers answers_;
};

}  // namespace forebay
