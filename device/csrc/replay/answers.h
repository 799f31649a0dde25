// What small reads were answered, so that a worker that does again what another had done is held against it. Guarded by the receiver's lock.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/wire.h"

namespace forebay {

class Answers {
 public:
  // A session begins, of which answers are kept, or not.
  void begin(bool keeps);
  // Another worker begins to do again what was done.
  void begin_comparison() { differences_ = compared_ = 0; }
  // Of a DATA behind its request, in the order of the requests.
  void note(uint64_t request, wire::Reader body);
  // What was answered up to this request is not asked again.
  void forget(uint64_t request);
  // Whether the answer to this request is known.
  bool knows(uint64_t request) const { return hash_of(request) != nullptr; }
  // The same request was answered again.
  void compare(uint64_t request, wire::Reader body);
  // How many were answered otherwise, of how many that were compared.
  uint64_t differences() const { return differences_; }
  uint64_t compared() const { return compared_; }

 private:
  const uint64_t* hash_of(uint64_t request) const;

  std::vector<std::pair<uint64_t, uint64_t>> hashes_;  // by request
  bool keeps_ = false;
  uint64_t differences_ = 0;
  uint64_t compared_ = 0;
};

}  // namespace forebay
