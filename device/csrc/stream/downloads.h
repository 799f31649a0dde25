// Downloads that no thread waits for: the worker says when a piece lies in shared memory. Guarded by the receiver's lock.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "forebay/wire.h"
#include "stream/failures.h"
#include "stream/session_state.h"

namespace forebay {

constexpr int64_t kPastCachesBytes = 32 << 20;  // a download of this size is written past the processor's caches

// A piece of a download.
struct Download {
  uint64_t request;
  const uint8_t* slot;  // in shared memory
  uint8_t* place;
  int64_t bytes;
  c10::Storage target;  // keeps `place` alive
};

class Downloads {
 public:
  explicit Downloads(StreamCounters& counters) : counters_(counters) {}

  // Without the lock: whether there are any.
  bool in_progress() const { return in_progress_.load(std::memory_order_relaxed); }
  // The first of so many free slots that follow each other; nothing if there are not as many.
  std::optional<size_t> reserve(size_t slots);
  void add(Download download);
  // An answer that no thread waits for: a download's, or one whose question was interrupted.
  void take(uint64_t request, wire::Reply reply, wire::Reader& body, uint64_t generation);
  // Whether one of them is written to these bytes.
  bool write_to(const uint8_t* data, int64_t bytes) const;
  bool have_failed() const { return failure_.has_value(); }
  std::optional<ToldFailure> take_failure();
  // Those that are left do not arrive.
  void drop();
  // The session has ended.
  void clear();
  // In a forked child.
  void forked();

 private:
  StreamCounters& counters_;
  std::deque<Download> pieces_;  // in the order of their requests
  std::atomic<bool> in_progress_{false};
  size_t slots_ = 0;  // in use, from the first on
  std::optional<ToldFailure> failure_;
};

}  // namespace forebay
