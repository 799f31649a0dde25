// What is kept on the host to save time, and goes where memory is short: whoever misses it computes it again.
#pragma once

#include <memory>

namespace forebay::worker {

class Cached {
 public:
  // Allocations of the calling thread may end it from here on, if it is on the host: else it stays.
  Cached(std::shared_ptr<void> contents, bool is_on_host);
  ~Cached();
  Cached(const Cached&) = delete;
  Cached& operator=(const Cached&) = delete;

  // Null where it has gone. It stays as long as this is held.
  std::shared_ptr<void> contents() const;

 private:
  friend class Cache;
  std::shared_ptr<void> contents_;
};

}  // namespace forebay::worker
