// Forks of this process. A child's session begins as a copy of its parent's, of a checkpoint that is taken in the moment of the fork.
#pragma once

#include <cstdint>

#include "stream/stream.h"

namespace forebay {

class Forks {
 public:
  explicit Forks(CommandStream& stream) : stream_(stream) {}

  // To be called once, before any device is used: from then on each fork is prepared, and each child begins.
  static void follow();
  // For the next forks of this thread: the checkpoint gets this number, or that of the last one where nothing came since. 0: a child has no copy.
  static void begin(uint64_t number);

  // The checkpoint that was taken at the last fork; 0: none.
  uint64_t taken();
  // In a child whose session has not begun: the checkpoint of the parent's with which it will.
  uint64_t origin() const { return stream_.session_.origin; }
  // No child begins with it any more. At any time; does not wait.
  void drop(uint64_t checkpoint);

 private:
  // Before a fork, and in the child, which has this thread alone: no other holds a lock any more.
  void prepare();
  void begin_child();

  CommandStream& stream_;
};

}  // namespace forebay
