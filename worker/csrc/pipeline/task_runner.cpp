#include "pipeline/task_runner.h"

#include <algorithm>

#include "gang/device_sums.h"

namespace forebay::worker {

namespace {

constexpr int64_t kAheadBytes = int64_t{64} << 10;  // of commands
constexpr int64_t kWordsBytes = 40;                 // of a command's few words, at most

DeviceSums::Pass pass_of(const Task& task) { return {task.place, task.to, task.uses.front(), task.makes.front().id, task.makes.front().bytes}; }

}  // namespace

TaskRunner::TaskRunner(const std::vector<Task>& tasks, const std::vector<size_t>& order, const std::vector<uint64_t>& kept, Gang& gang, const Device& device, Storages& storages,
                       Caller& caller)
    : tasks_(tasks), order_(order), kept_(kept), gang_(gang), device_(device), storages_(storages), caller_(caller), bytes_(gang.size(), 0), peaks_(gang.size(), 0) {
  for (const Task& task : tasks_) {
    for (const auto& made : task.makes) uses_.emplace(made.id, 0);
  }
  for (const Task& task : tasks_) {
    for (const uint64_t id : task.uses) {
      if (const auto found = uses_.find(id); found != uses_.end()) ++found->second;
    }
  }
}

bool TaskRunner::is_kept(uint64_t id) const { return std::binary_search(kept_.begin(), kept_.end(), id); }

void TaskRunner::take(uint64_t id, int place, int64_t bytes) {
  made_[id] = {place, bytes};
  int64_t& now = bytes_[static_cast<size_t>(place)];
  now += bytes;
  peaks_[static_cast<size_t>(place)] = std::max(peaks_[static_cast<size_t>(place)], now);
}

int TaskRunner::leave(uint64_t id) {
  const auto made = made_.find(id);
  const auto [place, bytes] = made->second;
  bytes_[static_cast<size_t>(place)] -= bytes;
  made_.erase(made);
  return place;
}

void TaskRunner::leave_unused(uint64_t id, const auto& free) {
  const auto uses = uses_.find(id);
  if (uses != uses_.end() && uses->second == 0 && !is_kept(id)) free(id, leave(id));
}

void TaskRunner::end_makes(const Task& task, const auto& free) {
  for (const auto& made : task.makes) leave_unused(made.id, free);
}

void TaskRunner::end_uses(const Task& task, const auto& free) {
  for (const uint64_t id : task.uses) {
    const auto uses = uses_.find(id);
    if (uses == uses_.end()) continue;
    --uses->second;
    leave_unused(id, free);
  }
}

// The other devices are sent some tasks ahead, since this one computes on the thread that sends them more; but no more than their connections take while
// they wait for a pass of this one's, and read nothing.
void TaskRunner::run(uint64_t sequence) {
  gang_.sums().meet();
  try {
    int64_t ahead = 0;
    for (size_t done = 0, sent = 0; done < order_.size(); ++done) {
      const bool is_few = ahead < kAheadBytes / 2;
      for (; is_few && sent < order_.size() && (ahead < kAheadBytes || sent == done); ++sent) {
        send(tasks_[order_[sent]], sequence);
        ahead += bytes_of(tasks_[order_[sent]]);
      }
      if (is_few) gang_.flush();
      carry_out(tasks_[order_[done]]);
      ahead -= bytes_of(tasks_[order_[done]]);
    }
    for (auto& [place, failure] : gang_.settle_each()) throw CommandError(failure.code, failure.message);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    withdraw();
    throw;
  }
}

int64_t TaskRunner::bytes_of(const Task& task) const {
  if (task.kind == Task::Kind::kPass) return 2 * kWordsBytes;
  if (task.place == 0) return 0;
  if (task.kind == Task::Kind::kCopy) return kWordsBytes * static_cast<int64_t>(1 + task.ranges.size());
  return kWordsBytes + 10 * static_cast<int64_t>(task.words.size()) + static_cast<int64_t>(gang_.templates().definition_of(task.definition).encoded.size());
}

void TaskRunner::send(const Task& task, uint64_t sequence) {
  if (task.kind == Task::Kind::kPass) {
    const auto pass = pass_of(task);
    if (task.to != 0) {
      gang_.rank(task.to).allocate(pass.target, pass.bytes);
      take(pass.target, task.to, pass.bytes);
    }
    gang_.sums().tell(pass);
    const auto free = [&](uint64_t id, int place) { gang_.rank(place).free(id); };
    if (task.to != 0) end_makes(task, free);
    if (task.place != 0) end_uses(task, free);
    return;
  }
  if (task.place == 0) return;
  Rank& rank = gang_.rank(task.place);
  for (const auto& made : task.makes) take(made.id, task.place, made.bytes);
  if (task.kind == Task::Kind::kCall) {
    gang_.send(task.place, task.definition, *task.plan, task.words, sequence);
  } else {
    rank.allocate(task.makes.front().id, task.makes.front().bytes);
    for (const auto& range : task.ranges) rank.copy(range.target, range.target_offset, range.source, range.source_offset, range.bytes);
  }
  const auto free = [&](uint64_t id, int) { rank.free(id); };
  end_makes(task, free);
  end_uses(task, free);
}

void TaskRunner::carry_out(const Task& task) {
  const bool is_pass = task.kind == Task::Kind::kPass;
  if (is_pass && (task.place == 0 || task.to == 0)) pass(task);
  if (task.place == 0 && task.kind == Task::Kind::kCall) call(task);
  if (task.place == 0 && task.kind == Task::Kind::kCopy) copy(task);
  const auto free = [&](uint64_t id, int) { storages_.withdraw(id); };
  if ((is_pass ? task.to : task.place) == 0) end_makes(task, free);
  if (task.place == 0) end_uses(task, free);
}

void TaskRunner::call(const Task& task) {
  for (const auto& made : task.makes) take(made.id, 0, made.bytes);
  caller_.bind(*task.plan, task.words);
  if (const Cause& cause = caller_.unusable()) throw CommandError(cause->code, cause->message);
  caller_.run(*task.plan);
}

void TaskRunner::copy(const Task& task) {
  const auto& made = task.makes.front();
  take(made.id, 0, made.bytes);
  storages_.check_room(made.bytes);
  Entry& target = storages_.insert(made.id, made.bytes);
  for (const auto& range : task.ranges) {
    device_.copy(target.touch(device_), range.target_offset, storages_.at(range.source).read(device_), range.source_offset, range.bytes);
  }
}

void TaskRunner::pass(const Task& task) {
  const auto pass = pass_of(task);
  const bool is_sent = task.place == 0;
  if (!is_sent) {
    take(pass.target, 0, pass.bytes);
    storages_.check_room(pass.bytes);
    storages_.insert(pass.target, pass.bytes);
  }
  Entry& entry = storages_.at(is_sent ? pass.source : pass.target);
  const c10::Storage& memory = is_sent ? entry.read(device_) : entry.touch_unwritten(device_);
  if (device_.is_host()) return gang_.sums().carry_out(pass, static_cast<uint8_t*>(memory.mutable_data()));
  const auto staging = device_.allocate_staging(pass.bytes);
  if (is_sent) {
    device_.copy(staging, 0, memory, 0, pass.bytes);
    device_.synchronize();
  }
  gang_.sums().carry_out(pass, static_cast<uint8_t*>(staging.mutable_data()));
  if (is_sent) return;
  device_.copy(memory, 0, staging, 0, pass.bytes);
  device_.synchronize();  // before host memory goes
}

// No device waits for another one any more, and none keeps what it made.
void TaskRunner::withdraw() {
  caller_.withdraw();
  gang_.sums().end_passes("it stopped in the middle of a step");
  gang_.settle_each();
  gang_.sums().part();
  for (const auto& [id, made] : made_) {
    if (made.place == 0) storages_.withdraw(id);
    else gang_.rank(made.place).free(id);
  }
  made_.clear();
}

}  // namespace forebay::worker
