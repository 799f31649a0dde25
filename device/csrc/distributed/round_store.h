// What the processes of a round tell each other, in the store that their process group was made with.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/progress.h"

namespace forebay {

// All may throw what the store throws, where it is gone.
class RoundStore {
 public:
  // Has a connection of its own: the program may wait in its store for a member that waits for this one.
  explicit RoundStore(c10d::Store& store) : store_(store.clone()) {}

  // A name for the group whose store this is, the same to all its members.
  std::string name();

  // The round after this one is wished for.
  void wish(uint64_t after);
  bool is_wished(uint64_t after) const;
  // The first process says so: a round, and the meeting of the workers that it is for.
  void announce(uint64_t round, uint64_t meeting);
  std::optional<std::pair<uint64_t, uint64_t>> announced() const;

  // What each process says in a round, by a name; and the first one.
  void report(uint64_t round, const std::string& what, uint64_t rank, const std::string& value);
  std::optional<std::string> reported(uint64_t round, const std::string& what, uint64_t rank) const;
  // Of all; nothing as long as one has not told it.
  std::optional<std::vector<std::string>> reported_by_all(uint64_t round, const std::string& what, uint64_t size) const;
  void forget(uint64_t round, const std::string& what, uint64_t size);

  // The last round that counts. It changes in one step, for workers of this meeting alone. Whether it did.
  bool count(uint64_t round, uint64_t meeting);
  // From now on it changes for workers of that meeting alone, or a later one. Returns the last round that counts.
  uint64_t begin(uint64_t meeting);

 private:
  struct State {
    uint64_t meeting;
    uint64_t round;
  };
  std::optional<std::string> get(const std::string& key) const;
  // Of the workers of this meeting where there is none.
  State state(uint64_t meeting);
  bool replace(const State& state, const State& by);

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace forebay
