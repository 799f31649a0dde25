// Tasks in the making: what each of them waits for follows from the storages that it uses, makes and writes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include <forebay/traces.h>

#include "gang/gang.h"
#include "pipeline/task.h"

namespace forebay::worker {

class TaskGraph {
 public:
  // Where a task belongs in the segment.
  struct Position {
    size_t step;
    int64_t part;
  };

  explicit TaskGraph(Gang& gang) : gang_(gang) {}

  // A storage that was there before.
  void know(uint64_t id, int place, int64_t bytes) { storages_[id] = {place, bytes, std::nullopt, {}, {}}; }
  // A number that no storage of the session's has.
  uint64_t draft() { return kDrafts + drafts_++; }

  // Each number is that of a storage on one device.
  int place_of(uint64_t id) const { return storages_.at(id).place; }
  bool knows(uint64_t id) const { return storages_.count(id) != 0; }
  // The number of what a device has of a storage; it is passed there first where need be.
  uint64_t at(uint64_t id, int place, Position position);
  // The bytes that would be passed.
  int64_t missing_bytes(uint64_t id, int place) const;

  // A call, whose words name storages of its device alone. `written`: those that it writes to.
  void call(Position position, int place, uint64_t definition, Plan& plan, wire::Words words, const std::vector<uint64_t>& written);
  // Makes a storage, and copies these ranges into it, whose target is it; the rest is zeros.
  void copy(Position position, int place, Task::Made made, std::vector<Task::Range> ranges);

  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  static constexpr uint64_t kDrafts = uint64_t{1} << 62;  // the client counts from 1

  struct Storage {
    int place = 0;
    int64_t bytes = 0;
    std::optional<size_t> writer;        // the task
    std::vector<size_t> readers;         // since then
    std::map<int, uint64_t> elsewhere;   // by device: what it has of it
  };

  Task& begin(Task::Kind kind, Position position, int place, double seconds);
  void use(Task& task, uint64_t id, bool writes);
  void make(Task::Made made, int place);
  void settle(Task& task) const;
  size_t last() const { return tasks_.size() - 1; }
  double seconds_of_call(uint64_t definition);
  double seconds_of_pass(int64_t bytes) const;

  Gang& gang_;
  std::unordered_map<uint64_t, Storage> storages_;
  std::vector<Task> tasks_;
  std::unordered_map<uint64_t, double> seconds_;  // by definition
  uint64_t drafts_ = 0;
};

}  // namespace forebay::worker
