// When a worker is asked to keep an image of the session: so often that little is done again if it dies, and so rarely that it costs little of its time.
// Guarded by the sender's lock, unless it says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>

#include "forebay/wire.h"
#include "replay/journal.h"

namespace forebay {

class Images {
 public:
  using Duration = std::chrono::nanoseconds;

  // `kept` counts those that were, of all sessions.
  explicit Images(std::atomic<uint64_t>& kept) : kept_(kept) {}

  // At any time: how long the device works from one image to the next, where nothing else asks for one; 0: none is asked for.
  void set_interval(double seconds) { interval_ns_ = static_cast<int64_t>(seconds * 1e9); }

  // A session begins.
  void begin_session() {
    number_ = 0;
    is_in_group_ = is_asked_together_ = is_kept_here_ = false;
  }
  // In a forked child.
  void forked() {
    new (&mutex_) std::mutex;
    answer_.reset();
    begin_session();
  }
  // The session is in a process group: from now on one is asked for where its members agree, and counts once they have all kept theirs.
  void join_group() { is_in_group_ = true; }
  // Another worker has the session; `keeps`: it keeps images.
  void begin(bool keeps);
  // The worker is gone, and with it what it was asked for.
  void lose(Journal& journal);

  // What the worker has answered takes effect.
  void settle(Journal& journal);
  // Whether to ask now. `worked`: for how long leases were open so far. `between`: between two segments, so that none is cut for it.
  bool is_due(const Journal& journal, Duration worked, bool between) const;
  // The number of the image to be asked for, behind all that the journal holds. `together`: as the members of a process group agree.
  uint64_t ask(const Journal& journal, Duration worked, bool together = false);

  // Whether the worker must have answered before so many bytes are uploaded. Of what members of a process group ask for together, another one may answer last.
  bool must_await(const Journal& journal, uint64_t bytes) const { return !is_asked_together_ && journal.must_await_image(bytes); }

  // Of a session in a process group. Whether to ask its members for one now; whether one may be asked for.
  bool is_wanted(const Journal& journal, Duration worked) const { return is_needed(journal, worked, /*between=*/true); }
  bool may_ask(const Journal& journal) const { return keeps_ && !holds_ && !journal.is_given_up() && !journal.awaits_image(); }
  // Whether this session's worker has kept the image that was asked for last, which counts if all members have theirs.
  bool is_kept_here() const { return is_kept_here_; }
  void count(Journal& journal, bool all_kept);

  // The number of the image that the worker is to keep as the session leaves it; 0: none.
  uint64_t ask_last(const Journal& journal, Duration worked);

  // At any time: none is asked for until this is undone.
  void hold(bool holds) { holds_ = holds; }
  // From the receiver: a KEPT, behind its request. Returns the last request of which no answer is needed any more.
  uint64_t answered(wire::Reader body);

 private:
  bool is_needed(const Journal& journal, Duration worked, bool between) const;

  struct Answer {
    uint64_t number;
    int64_t took_ns;
    bool is_kept;
  };

  std::atomic<uint64_t>& kept_;
  std::atomic<int64_t> interval_ns_{0};
  std::atomic<bool> holds_{false};
  bool keeps_ = false;
  std::atomic<bool> is_in_group_{false};
  bool is_asked_together_ = false;
  bool is_kept_here_ = false;
  uint64_t number_ = 0;   // of the last that was asked for
  Duration asked_at_{};   // of the work
  Duration least_{};      // of work until the next one
  std::mutex mutex_;      // guards all that follows
  uint64_t last_request_ = 0;  // before the image that was asked for
  std::optional<Answer> answer_;
};

}  // namespace forebay
