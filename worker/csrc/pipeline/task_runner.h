// Has the devices of a gang carry out tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "call/call.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "pipeline/task.h"

namespace forebay::worker {

class TaskRunner {
 public:
  // `tasks`, in the order in which each device carries out its own; `kept`: ids of what stays, sorted. All must be settled.
  TaskRunner(const std::vector<Task>& tasks, const std::vector<size_t>& order, const std::vector<uint64_t>& kept, Gang& gang, const Device& device, Storages& storages,
             Caller& caller);

  // Returns when all is done. Throws CommandError, PassEnded, what an operator throws; then nothing that the tasks made is left. `sequence`: the number of the first call.
  void run(uint64_t sequence);
  // The most that each device held of what was made.
  const std::vector<int64_t>& peaks() const { return peaks_; }

 private:
  // Memory on a device, or that it was told to make.
  struct Made {
    int place;
    int64_t bytes;
  };
  void take(uint64_t id, int place, int64_t bytes);
  // Returns the device that had it.
  int leave(uint64_t id);
  // Free what no task uses any more, of what a task makes and uses. The devices of a pass each have their side of that, at their time.
  void end_makes(const Task& task, const auto& free);
  void end_uses(const Task& task, const auto& free);
  void leave_unused(uint64_t id, const auto& free);
  // Of the commands that tell other devices of it, at most.
  int64_t bytes_of(const Task& task) const;
  void send(const Task& task, uint64_t sequence);
  void carry_out(const Task& task);
  void call(const Task& task);
  void copy(const Task& task);
  void pass(const Task& task);
  void withdraw();
  bool is_kept(uint64_t id) const;

  const std::vector<Task>& tasks_;
  const std::vector<size_t>& order_;
  const std::vector<uint64_t>& kept_;
  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Caller& caller_;
  std::unordered_map<uint64_t, size_t> uses_;        // of what was made, that are still to come
  std::unordered_map<uint64_t, Made> made_;          // by id
  std::vector<int64_t> bytes_, peaks_;               // by device, of what was made
};

}  // namespace forebay::worker
