// A session's checkpoints, which its worker keeps: what storages held, had back by a command of the stream like any other.
#pragma once

#include <cstdint>

#include "forebay/checkpoints.h"
#include "stream/stream.h"

namespace forebay {

class Checkpoints {
 public:
  explicit Checkpoints(CommandStream& stream) : stream_(stream) {}

  // Takes one, behind all that was recorded. Does not wait. Numbers ascend. Storages of this number and above are newer.
  uint64_t take(uint64_t number, bool is_named);
  // Those that the worker has, once it has done all before. It does not drop the one of the number `held` until the session has gone back to it.
  wire::Checkpoints reported(uint64_t held);
  // Whether the worker has dropped some, as it says at the end of a span, since this was asked last. Does not wait.
  bool were_dropped() { return stream_.receiver_.take_dropped_checkpoints(); }
  // To one that was just held. Throws where the worker fails.
  wire::WentBack go_back(uint64_t number);

 private:
  CommandStream& stream_;
};

}  // namespace forebay
