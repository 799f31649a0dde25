#include "pipeline/task_graph.h"

#include <algorithm>
#include <utility>

#include "parallel/call_seconds.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

Task& TaskGraph::begin(Task::Kind kind, Position position, int place, double seconds) {
  Task& task = tasks_.emplace_back();
  task.kind = kind;
  task.place = place;
  task.step = position.step;
  task.part = position.part;
  task.seconds = seconds;
  return task;
}

void TaskGraph::use(Task& task, uint64_t id, bool writes) {
  Storage& storage = storages_.at(id);
  task.uses.push_back(id);
  if (storage.writer) task.after.push_back(*storage.writer);
  if (!writes) {
    storage.readers.push_back(last());
    return;
  }
  task.after.insert(task.after.end(), storage.readers.begin(), storage.readers.end());
  storage.readers.clear();
  storage.writer = last();
  storage.elsewhere.clear();
}

void TaskGraph::make(Task::Made made, int place) { storages_[made.id] = {place, made.bytes, last(), {}, {}}; }

// A task that uses a storage twice waits for itself nowhere, and for each other task once.
void TaskGraph::settle(Task& task) const {
  std::sort(task.after.begin(), task.after.end());
  task.after.erase(std::unique(task.after.begin(), task.after.end()), task.after.end());
  task.after.erase(std::remove(task.after.begin(), task.after.end(), last()), task.after.end());
  std::sort(task.uses.begin(), task.uses.end());
  task.uses.erase(std::unique(task.uses.begin(), task.uses.end()), task.uses.end());
}

uint64_t TaskGraph::at(uint64_t id, int place, Position position) {
  const Storage& storage = storages_.at(id);
  if (storage.place == place) return id;
  const auto there = storage.elsewhere.find(place);
  if (there != storage.elsewhere.end()) return there->second;
  const Task::Made made{draft(), storage.bytes};
  Task& task = begin(Task::Kind::kPass, position, storage.place, seconds_of_pass(storage.bytes));
  task.to = place;
  task.makes.push_back(made);
  use(task, id, /*writes=*/false);
  settle(task);
  storages_.at(id).elsewhere.emplace(place, made.id);
  make(made, place);
  return made.id;
}

int64_t TaskGraph::missing_bytes(uint64_t id, int place) const {
  const Storage& storage = storages_.at(id);
  return storage.place == place || storage.elsewhere.count(place) != 0 ? 0 : storage.bytes;
}

void TaskGraph::call(Position position, int place, uint64_t definition, Plan& plan, wire::Words words, const std::vector<uint64_t>& written) {
  Task& task = begin(Task::Kind::kCall, position, place, seconds_of_call(definition));
  for_each_tensor(plan, words, [&](size_t, uint64_t id) { use(task, id, std::find(written.begin(), written.end(), id) != written.end()); });
  settle(task);
  std::vector<const OutputPlan*> outputs;
  flatten(plan.outputs, outputs);
  for_each_made(plan, words, [&](size_t number, uint64_t id) {
    task.makes.push_back({id, outputs[number]->storage_bytes});
    make(task.makes.back(), place);
  });
  task.definition = definition;
  task.plan = &plan;
  task.words = std::move(words);
}

void TaskGraph::copy(Position position, int place, Task::Made made, std::vector<Task::Range> ranges) {
  double bytes = 0;
  for (const auto& range : ranges) bytes += 2 * static_cast<double>(range.bytes);
  const auto& rates = gang_.rates();
  Task& task = begin(Task::Kind::kCopy, position, place, rates.call_s + bytes / rates.bytes_per_s);
  for (const auto& range : ranges) use(task, range.source, /*writes=*/false);
  settle(task);
  task.makes.push_back(made);
  task.ranges = std::move(ranges);
  make(made, place);
}

double TaskGraph::seconds_of_call(uint64_t definition) {
  const auto [known, is_new] = seconds_.try_emplace(definition);
  auto& templates = gang_.templates();
  if (is_new) known->second = seconds_of(templates.template_of(definition), templates.operator_of(definition), gang_.rates());
  return known->second;
}

double TaskGraph::seconds_of_pass(int64_t bytes) const { return gang_.rates().link_latency_s + static_cast<double>(bytes) / gang_.rates().link_bytes_per_s; }

}  // namespace forebay::worker
