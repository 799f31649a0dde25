// In which order the devices of a gang carry out tasks, found by following them with the time that each is said to take.
//
// Each device takes, of what it can begin, the earliest part of the batch first: so a part's backward pass comes before the forward pass of the next
// one, as soon as it can (the schedule "1F1B" of Narayanan et al., "PipeDream", SOSP 2019).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/task.h"

namespace forebay::worker {

struct TaskOrder {
  std::vector<size_t> order;    // of all devices: each carries out its own in this order, and passes in this order block none for ever
  double seconds = 0;           // until all are done
  std::vector<int64_t> bytes;   // that each device holds at most of what the tasks make
};

// `kept`: ids of what stays when the tasks are done, sorted.
TaskOrder order_of(const std::vector<Task>& tasks, size_t devices, const std::vector<uint64_t>& kept);

}  // namespace forebay::worker
