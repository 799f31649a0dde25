#include "pipeline/task_order.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>

namespace forebay::worker {

namespace {

class Following {
 public:
  Following(const std::vector<Task>& tasks, size_t devices) : tasks_(tasks), free_(devices, 0), ready_(devices), waits_for_(tasks.size()), since_(tasks.size(), 0), next_(tasks.size()) {
    for (size_t number = 0; number < tasks.size(); ++number) {
      waits_for_[number] = tasks[number].after.size();
      for (const size_t before : tasks[number].after) next_[before].push_back(number);
      if (waits_for_[number] == 0) ready_[place_of(number)].push_back(number);
    }
  }

  TaskOrder order() {
    TaskOrder result;
    while (result.order.size() < tasks_.size()) {
      const size_t number = take();
      const Task& task = tasks_[number];
      double& here = free_[place_of(number)];
      double& there = task.kind == Task::Kind::kPass ? free_[static_cast<size_t>(task.to)] : here;
      const double end = std::max({here, there, since_[number]}) + task.seconds;
      here = there = end;
      result.seconds = std::max(result.seconds, end);
      result.order.push_back(number);
      for (const size_t after : next_[number]) {
        since_[after] = std::max(since_[after], end);
        if (--waits_for_[after] == 0) ready_[place_of(after)].push_back(after);
      }
    }
    return result;
  }

 private:
  size_t place_of(size_t number) const { return static_cast<size_t>(tasks_[number].place); }

  // Of the device that can begin first.
  size_t take() {
    size_t first = 0;
    double soonest = std::numeric_limits<double>::infinity();
    for (size_t place = 0; place < ready_.size(); ++place) {
      for (const size_t number : ready_[place]) {
        const double begin = std::max(free_[place], since_[number]);
        if (begin < soonest) std::tie(soonest, first) = std::pair(begin, place);
      }
    }
    auto& ready = ready_[first];
    auto best = ready.end();
    for (auto one = ready.begin(); one != ready.end(); ++one) {
      if (std::max(free_[first], since_[*one]) > soonest) continue;
      if (best == ready.end() || rank_of(*one) < rank_of(*best)) best = one;
    }
    const size_t number = *best;
    ready.erase(best);
    return number;
  }
  std::tuple<int64_t, size_t, size_t> rank_of(size_t number) const { return {tasks_[number].part, tasks_[number].step, number}; }

  const std::vector<Task>& tasks_;
  std::vector<double> free_;                // from when on each device is
  std::vector<std::vector<size_t>> ready_;  // tasks of each device that wait for none
  std::vector<size_t> waits_for_;
  std::vector<double> since_;               // when what a task waits for is done
  std::vector<std::vector<size_t>> next_;
};

std::vector<int64_t> most_bytes(const std::vector<Task>& tasks, const std::vector<size_t>& order, size_t devices, const std::vector<uint64_t>& kept) {
  struct Storage {
    int64_t bytes;
    size_t place;
    size_t uses = 0;
  };
  std::unordered_map<uint64_t, Storage> made;
  for (const Task& task : tasks) {
    for (const auto& [id, bytes] : task.makes) made.emplace(id, Storage{bytes, static_cast<size_t>(task.kind == Task::Kind::kPass ? task.to : task.place)});
  }
  for (const Task& task : tasks) {
    for (const uint64_t id : task.uses) {
      if (const auto found = made.find(id); found != made.end()) ++found->second.uses;
    }
  }
  std::vector<int64_t> now(devices, 0), most(devices, 0);
  const auto leave = [&](uint64_t id, const Storage& storage) {
    if (storage.uses == 0 && !std::binary_search(kept.begin(), kept.end(), id)) now[storage.place] -= storage.bytes;
  };
  for (const size_t number : order) {
    const Task& task = tasks[number];
    for (const auto& one : task.makes) {
      const auto& storage = made.at(one.id);
      now[storage.place] += storage.bytes;
      most[storage.place] = std::max(most[storage.place], now[storage.place]);
    }
    for (const auto& one : task.makes) leave(one.id, made.at(one.id));
    for (const uint64_t id : task.uses) {
      const auto found = made.find(id);
      if (found == made.end()) continue;
      --found->second.uses;
      leave(id, found->second);
    }
  }
  return most;
}

}  // namespace

TaskOrder order_of(const std::vector<Task>& tasks, size_t devices, const std::vector<uint64_t>& kept) {
  TaskOrder result = Following(tasks, devices).order();
  result.bytes = most_bytes(tasks, result.order, devices, kept);
  return result;
}

}  // namespace forebay::worker
