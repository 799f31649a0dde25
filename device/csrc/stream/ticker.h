// The thread that sends what was recorded, soon after it was recorded, so that a program need not.
#pragma once

#include <atomic>
#include <cstdint>

#include "stream/command_buffer.h"
#include "stream/connection.h"
#include "stream/receiver.h"
#include "stream/sender.h"
#include "stream/session_state.h"
#include "stream/wakeup.h"

namespace forebay {

class Ticker {
 public:
  Ticker(const SessionState& session, const StreamCounters& counters, const Connection& connection, CommandBuffer& commands, Sender& sender, Receiver& receiver,
         Wakeup& wakeup)
      : session_(session), counters_(counters), connection_(connection), commands_(commands), sender_(sender), receiver_(receiver), wakeup_(wakeup) {}

  // Does nothing if the thread runs.
  void start();
  // In a forked child, which has no such thread.
  void forked() { runs_ = false; }

 private:
  void run();
  bool has_work();
  // Of a program that rests: frees wait for the next call, of which they are expected.
  void say_frees();

  const SessionState& session_;
  const StreamCounters& counters_;
  const Connection& connection_;
  CommandBuffer& commands_;
  Sender& sender_;
  Receiver& receiver_;
  Wakeup& wakeup_;
  std::atomic<bool> runs_{false};
};

}  // namespace forebay
