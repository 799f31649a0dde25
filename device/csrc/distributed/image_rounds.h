// Images of all processes that are in process groups together: each between the same collectives, so that all can go on from them.
//
// From time to time the first process announces a round. When all are there, each holds its collectives, and says how far it is; those that are behind
// go on until none is (CutSearch). Then each asks its worker for an image and goes on. Once all workers have kept theirs, the first process says so in
// one step (RoundStore::count), and from then on all go on from these; until then from those before. A round that takes too long is given up.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/meetings.h"
#include "distributed/progress.h"
#include "distributed/round_store.h"
#include "stream/stream.h"

namespace forebay {

class ImageRounds final : public CommonImages, public std::enable_shared_from_this<ImageRounds> {
 public:
  // This process is number `rank` of `size` that share the store.
  ImageRounds(CommandStream& stream, std::shared_ptr<RoundStore> store, uint64_t rank, uint64_t size)
      : stream_(stream), generation_(stream.generation()), store_(std::move(store)), rank_(rank), size_(size), meeting_(stream.commands().meetings().number()) {}

  // Starts the threads; once.
  void start();
  // A group's members are on devices that these rounds know nothing of: there are no images from here on.
  void forbid() { is_forbidden_ = true; }
  bool are_of(const CommandStream& stream) const { return &stream == &stream_; }
  // Whether the session is still the one that this is of.
  bool is_present() const { return stream_.connected() && stream_.generation() == generation_; }

  // A group, and that the worker is to be told of a member; before each.
  void join(const std::string& group, uint64_t rank, uint64_t size);
  void meet(const std::string& group, uint64_t member);
  void leave(const std::string& group);
  // Something is recorded on these channels, under the lock of the commands. False where it has to wait.
  bool record(const std::vector<Channel>& channels);
  // Returns when it may be recorded. Throws if a signal's handler does.
  void wait();

  bool go_on(uint64_t meeting) override;

 private:
  using Clock = std::chrono::steady_clock;

  bool lives() const { return is_present() && !is_forbidden_; }
  // As lives, with workers of this meeting.
  bool is_of(uint64_t meeting);

  // As a member. A thread's work: takes part in rounds, and wishes for them.
  void run();
  void take_part(uint64_t round, uint64_t meeting);
  void hold(bool holds);
  // How far this process is, once it is not behind any more.
  std::optional<std::string> arrived(Clock::time_point until);
  // How far this process is, where a cut was found.
  std::optional<std::string> find_cut(uint64_t round, uint64_t meeting);
  bool is_at(const std::string& cut);
  bool ask_for_image();
  void note_asked(uint64_t round, uint64_t meeting);
  bool is_asked(uint64_t round);
  // Returns once this process's worker has kept its image, or has not.
  bool is_kept(uint64_t round);
  // Returns once it is decided whether the images of this round count.
  void settle(uint64_t round);

  // As the first process. A thread's work: announces rounds, and decides whether they count.
  void lead();
  bool lead_round(uint64_t round, uint64_t meeting);
  bool lead_search(uint64_t round, uint64_t meeting);
  void forget_before(uint64_t round);

  CommandStream& stream_;
  const uint64_t generation_;
  const std::shared_ptr<RoundStore> store_;
  const uint64_t rank_;
  const uint64_t size_;
  std::atomic<bool> is_forbidden_{false};
  uint64_t forgotten_ = 0;  // by the first process: of the rounds up to this one the store holds nothing any more
  uint64_t searches_ = 0;   // most in a round of those that are still there

  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  Progress progress_;
  Counts targets_;
  bool holds_ = false;
  uint64_t meeting_;       // of the workers
  uint64_t asked_ = 0;     // the round whose image was asked for, and that is neither counted nor given up; 0: none
};

// The rounds of this process. The first process group that it makes is taken for the one of all processes.
class Rounds {
 public:
  static Rounds& get();
  // A group is made, or ends.
  void offer(const void* group, c10::intrusive_ptr<c10d::Store> store, uint64_t rank, uint64_t size);
  void withdraw(const void* group);
  // Of a session in a process group, with its own store; null where it has none.
  std::shared_ptr<ImageRounds> of(CommandStream& stream);

 private:
  struct World {
    const void* group;
    c10::intrusive_ptr<c10d::Store> store;
    uint64_t rank;
    uint64_t size;
  };
  std::mutex mutex_;
  std::optional<World> world_;
  std::shared_ptr<ImageRounds> rounds_;
};

}  // namespace forebay
