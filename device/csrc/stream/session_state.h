// What all parts of a command stream ask: whether there is a worker, and which session's tensors exist.
#pragma once

#include <atomic>
#include <cstdint>

namespace forebay {

struct SessionState {
  std::atomic<bool> connected{false};
  // True between two workers. Changed only while the locks of the receiver, the sender and the commands are held: whoever holds
  // one of them sees no change.
  std::atomic<bool> away{false};
  // True from when the connection broke until another worker has been told all that was sent.
  std::atomic<bool> broken{false};
  // So many threads waited for an answer of a worker that died, and do not wait for that of the next one yet. Meanwhile no other takes what comes.
  std::atomic<int> torn{0};
  // True while a worker is greeted that may have what the session left, and that is told nothing else yet.
  std::atomic<bool> entering{false};
  // True in a forked child whose parent had a session, of which it has no copy.
  std::atomic<bool> forked{false};
  // In a forked child: the checkpoint of its parent with which the session begins, until it has begun; 0: none.
  std::atomic<uint64_t> origin{0};
  // Ends when the session's tensors are lost. Storages of an earlier generation are refused.
  std::atomic<uint64_t> generation{1};
};

// What a stream counts for its statistics.
struct StreamCounters {
  std::atomic<uint64_t> frames{0};  // of commands
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> bytes_known{0};  // of uploads that were not sent because the worker had the bytes
  std::atomic<uint64_t> questions{0};
  std::atomic<uint64_t> answers{0};  // or errors that ended the wait for one
  std::atomic<uint64_t> waited_ns{0};
  std::atomic<uint64_t> images{0};  // that workers kept

  // True while a thread waits for an answer.
  bool is_asking() const { return answers.load(std::memory_order_relaxed) != questions.load(std::memory_order_relaxed); }
};

// Whether a thread may wait for the socket.
enum class Wait : uint8_t { kNo, kYes };

}  // namespace forebay
