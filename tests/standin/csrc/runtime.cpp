#include "runtime.h"

#include <unistd.h>

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace standin {

namespace {

using std::chrono::steady_clock;

constexpr size_t kMemoryBytes = size_t{4} << 30;
constexpr size_t kRoundingBytes = 512;  // as of CUDA's allocator
constexpr uint8_t kPoison = 0xDB;
constexpr size_t kFindingsMax = 100;

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Settings read_settings() {
  Settings settings;
  settings.devices = static_cast<int>(std::min<uint64_t>(number_of("FOREBAY_STANDIN_DEVICES", 2), kDevicesMax));
  settings.memory_bytes = number_of("FOREBAY_STANDIN_MEMORY_BYTES", kMemoryBytes);
  settings.delay = std::chrono::microseconds(number_of("FOREBAY_STANDIN_DELAY_MICROSECONDS", 100));
  const char* fault = std::getenv("FOREBAY_STANDIN_FAULT");
  const std::string_view planted = fault == nullptr ? "" : fault;
  settings.waits = planted != "no-wait";
  settings.copies_in_order = planted != "stray-copies";
  const char* holdings = std::getenv("FOREBAY_STANDIN_HOLDINGS");
  settings.holdings = holdings == nullptr ? "" : holdings;
  return settings;
}

// Failures that a device's kernels find on the host, by what they are called with: they leave the device as it is.
bool leaves_device_whole(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::NotImplementedError&) {
    return true;
  } catch (const c10::TypeError&) {
    return true;
  } catch (const c10::ValueError&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::string mebibytes(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Runtime& Runtime::get() {
  static auto* runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() : settings_(read_settings()) {
  for (auto& usage : usage_) usage.limit = settings_.memory_bytes;
}

// Streams.

void Runtime::serve(int stream) {
  at::set_num_threads(1);  // the same sums whatever the host does
  c10::AutoGradMode no_gradients(false);
  Queue& queue = queues_[static_cast<size_t>(stream)];
  const int device = stream / kStreamsPerDevice;
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue.jobs.empty(); });
    Job job = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    const bool lost = lost_[static_cast<size_t>(device)];
    lock.unlock();
    std::this_thread::sleep_until(job.start);
    std::exception_ptr failure;
    try {
      if (!lost) job.run();
    } catch (...) {
      failure = std::current_exception();
    }
    job = {};
    lock.lock();
    if (failure) fail(device, failure);
    ++queue.ended;
    changed_.notify_all();
  }
}

void Runtime::fail(int device, const std::exception_ptr& failure) {
  auto& kept = failures_[static_cast<size_t>(device)];
  if (kept) return;
  kept = failure;
  lost_[static_cast<size_t>(device)] = !leaves_device_whole(failure);
}

void Runtime::throw_failure(int device) {
  auto& failure = failures_[static_cast<size_t>(device)];
  if (!failure) return;
  if (!lost_[static_cast<size_t>(device)]) std::rethrow_exception(std::exchange(failure, nullptr));
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 1, "standin error: a kernel failed, and the device is lost: " + text_of(failure));
}

void Runtime::find_misuse(const std::string& misuse) {
  if (misuse.empty()) return;
  std::fprintf(stderr, "standin: %s\n", misuse.c_str());
  if (findings_.size() < kFindingsMax) findings_.push_back(misuse);
  misuse_ = misuse;
}

void Runtime::throw_misuse() {
  if (misuse_.empty()) return;
  const std::string misuse = std::exchange(misuse_, "");
  TORCH_CHECK(false, "standin: ", misuse);
}

std::vector<BlockRef> Runtime::hold(Queue& queue, int stream, const std::string& name, const std::vector<Range>& ranges) {
  std::vector<BlockRef> blocks;
  for (const Range& range : ranges) {
    if (range.bytes == 0) continue;
    auto block = memory_.find(reinterpret_cast<const void*>(range.begin));
    TORCH_CHECK(block != nullptr, "standin: ", name, " uses memory that is not allocated");
    find_misuse(note_access(*block, {range, stream, queue.submitted + 1, name}, queue.known));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

uint64_t Runtime::push(Lock&, int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run) {
  if (Graph* graph = graphs_[static_cast<size_t>(stream)]) {
    graph->steps.push_back({name, ranges, std::move(run)});
    return 0;
  }
  Queue& queue = queues_[static_cast<size_t>(stream)];
  merge(queue.known, host_);
  auto blocks = hold(queue, stream, name, ranges);
  queue.known[static_cast<size_t>(stream)] = ++queue.submitted;
  queue.jobs.push_back({std::move(run), std::move(blocks), steady_clock::now() + settings_.delay});
  if (!std::exchange(queue.running, true)) std::thread([this, stream] { serve(stream); }).detach();
  changed_.notify_all();
  return queue.submitted;
}

void Runtime::submit(int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run) {
  Lock lock(mutex_);
  throw_failure(stream / kStreamsPerDevice);
  push(lock, stream, name, ranges, std::move(run));
  throw_misuse();
}

void Runtime::submit_unproven(int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run) {
  Lock lock(mutex_);
  forbid_in_graph(stream, name);
  const int device = stream / kStreamsPerDevice;
  throw_failure(device);
  const uint64_t job = push(lock, stream, name, ranges, std::move(run));
  throw_misuse();
  const Queue& queue = queues_[static_cast<size_t>(stream)];
  changed_.wait(lock, [&] { return queue.ended >= job; });
  if (!lost_[static_cast<size_t>(device)]) throw_failure(device);
}

void Runtime::submit_and_wait(int stream, const std::string& name, const std::vector<Range>& ranges, const std::function<void()>& run) {
  std::exception_ptr failure;
  bool ran = false;
  Lock lock(mutex_);
  forbid_in_graph(stream, name);
  throw_failure(stream / kStreamsPerDevice);
  const uint64_t job = push(lock, stream, name, ranges, [&] {
    ran = true;
    try {
      run();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  Queue& queue = queues_[static_cast<size_t>(stream)];
  const Clock known = queue.known;
  changed_.wait(lock, [&] { return queue.ended >= job; });  // whatever was planted: the job uses this frame
  learn(known);
  throw_failure(stream / kStreamsPerDevice);
  throw_misuse();
  if (failure) std::rethrow_exception(failure);
  TORCH_CHECK(ran, "standin: ", name, " did not run");
}

// Graphs.

void Runtime::forbid_in_graph(int stream, const std::string& what) {
  Graph* graph = graphs_[static_cast<size_t>(stream)];
  if (graph == nullptr) return;
  graph->failure = "standin: " + what + " is not permitted while a stream is recorded";
  TORCH_CHECK(false, graph->failure);
}

void Runtime::begin_graph(int stream, Graph* graph) {
  Lock lock(mutex_);
  forbid_in_graph(stream, "a second graph");
  TORCH_CHECK(stream % kStreamsPerDevice != 0, "standin: a device's default stream cannot be recorded");
  graphs_[static_cast<size_t>(stream)] = graph;
}

void Runtime::end_graph(int stream) {
  Lock lock(mutex_);
  const Graph* graph = std::exchange(graphs_[static_cast<size_t>(stream)], nullptr);
  TORCH_CHECK(graph != nullptr, "standin: this stream is not recorded");
  TORCH_CHECK(graph->failure.empty(), "standin: the graph was broken off by this: ", graph->failure);
}

bool Runtime::records(int stream) {
  Lock lock(mutex_);
  return graphs_[static_cast<size_t>(stream)] != nullptr;
}

void Runtime::replay(int stream, const Graph& graph, std::function<void()> first) {
  Lock lock(mutex_);
  forbid_in_graph(stream, "another graph");
  throw_failure(stream / kStreamsPerDevice);
  push(lock, stream, "a graph's draws", {}, std::move(first));
  for (const auto& step : graph.steps) push(lock, stream, step.name, step.ranges, step.run);
  throw_misuse();
}

void Runtime::release(const Graph& graph) {
  const Lock lock(mutex_);
  for (const auto& block : graph.memory) {
    block->is_held = false;
    if (block->is_kept) give_back(*block);
  }
}

// Copies between the host and a device.

void Runtime::add_transfer(int stream, const Range& range, bool keep) {
  if (range.bytes == 0) return;
  Transfer transfer{range, stream, queues_[static_cast<size_t>(stream)].submitted, memory_.find(reinterpret_cast<const void*>(range.begin)), {}};
  const uint8_t* data = shadow_of(reinterpret_cast<const void*>(range.begin));
  if (keep) transfer.source.assign(data, data + range.bytes);
  transfers_.push_back(std::move(transfer));
}

void Runtime::submit_to_pinned(int stream, const std::vector<Range>& ranges, const Range& target, std::function<void()> run) {
  Lock lock(mutex_);
  throw_failure(stream / kStreamsPerDevice);
  const auto overlaps = [&](const Transfer& other) {
    return other.range.begin < target.begin + target.bytes && target.begin < other.range.begin + other.range.bytes;
  };
  if (std::none_of(transfers_.begin(), transfers_.end(), overlaps)) {  // pages that are shared with other bytes stay open
    std::memset(shadow_of(reinterpret_cast<void*>(target.begin)), kPoison, target.bytes);
  }
  // What an earlier copy reads there changes by this one; that the streams are in order is checked apart.
  std::erase_if(transfers_, [&](const Transfer& other) { return !other.source.empty() && overlaps(other); });
  push(lock, stream, "a copy to the host", ranges, std::move(run));
  add_transfer(stream, target, false);
  if (target.bytes != 0) close_to_host(*transfers_.back().block, target);
  throw_misuse();
}

void Runtime::submit_from_pinned(int stream, const std::vector<Range>& ranges, const Range& source, std::function<void()> run) {
  Lock lock(mutex_);
  throw_failure(stream / kStreamsPerDevice);
  push(lock, stream, "a copy from the host", ranges, std::move(run));
  add_transfer(stream, source, true);
  throw_misuse();
}

// The host knows that these jobs have ended: what they copied is its own again.
void Runtime::learn(const Clock& known) {
  merge(host_, known);
  std::vector<Transfer> ended;
  std::erase_if(transfers_, [&](Transfer& transfer) {
    if (host_[static_cast<size_t>(transfer.stream)] < transfer.job) return false;
    ended.push_back(std::move(transfer));
    return true;
  });
  for (const Transfer& transfer : ended) {
    const auto* address = reinterpret_cast<const void*>(transfer.range.begin);
    if (transfer.source.empty()) {
      open_to_host(*transfer.block, transfer.range);
    } else if (std::memcmp(shadow_of(address), transfer.source.data(), transfer.source.size()) != 0) {
      find_misuse("the host changed " + std::to_string(transfer.range.bytes) + " bytes of pinned memory that a copy to the device (job " +
                  std::to_string(transfer.job) + " of " + stream_name(transfer.stream) + ") reads, without waiting for the copy: a synchronisation is missing");
    }
  }
  for (const Transfer& transfer : transfers_) {  // which may share pages with what was opened
    if (transfer.source.empty()) close_to_host(*transfer.block, transfer.range);
  }
}

void Runtime::settle(Lock& lock, int stream, uint64_t job, const Clock& known) {
  if (!settings_.waits) return;
  const Queue& queue = queues_[static_cast<size_t>(stream)];
  changed_.wait(lock, [&] { return queue.ended >= job; });
  learn(known);
  throw_failure(stream / kStreamsPerDevice);
  throw_misuse();
}

void Runtime::synchronize(int stream) {
  Lock lock(mutex_);
  forbid_in_graph(stream, "a synchronisation");
  const Queue& queue = queues_[static_cast<size_t>(stream)];
  const Clock known = queue.known;
  settle(lock, stream, queue.submitted, known);
}

void Runtime::synchronize_device(int device) {
  for (int stream = device * kStreamsPerDevice; stream < (device + 1) * kStreamsPerDevice; ++stream) synchronize(stream);
}

bool Runtime::query(int stream) {
  Lock lock(mutex_);
  forbid_in_graph(stream, "a query");
  const Queue& queue = queues_[static_cast<size_t>(stream)];
  if (queue.ended < queue.submitted) return false;
  const Clock known = queue.known;
  learn(known);
  if (lost_[static_cast<size_t>(stream / kStreamsPerDevice)]) throw_failure(stream / kStreamsPerDevice);
  return true;
}

// Events.

void Runtime::record(const EventRef& event, int stream) {
  Lock lock(mutex_);
  forbid_in_graph(stream, "an event");
  throw_failure(stream / kStreamsPerDevice);
  event->stream = stream;
  event->job = push(lock, stream, "an event", {}, [this, event] {
    const Lock inner(mutex_);
    event->time = steady_clock::now();
  });
  event->known = queues_[static_cast<size_t>(stream)].known;
}

void Runtime::wait(const EventRef& event, int stream) {
  Lock lock(mutex_);
  if (event->stream < 0 || event->stream == stream) return;
  throw_failure(stream / kStreamsPerDevice);
  push(lock, stream, "a wait for an event", {}, [this, other = event->stream, job = event->job] {
    Lock inner(mutex_);
    changed_.wait(inner, [&] { return queues_[static_cast<size_t>(other)].ended >= job; });
  });
  merge(queues_[static_cast<size_t>(stream)].known, event->known);
}

bool Runtime::query(const EventRef& event) {
  Lock lock(mutex_);
  if (event->stream < 0) return true;
  if (queues_[static_cast<size_t>(event->stream)].ended < event->job) return false;
  learn(event->known);
  const int device = event->stream / kStreamsPerDevice;
  if (lost_[static_cast<size_t>(device)]) throw_failure(device);  // other failures wait for somebody who can tell of them
  return true;
}

void Runtime::synchronize(const EventRef& event) {
  Lock lock(mutex_);
  if (event->stream >= 0) settle(lock, event->stream, event->job, event->known);
}

double Runtime::elapsed_milliseconds(const EventRef& from, const EventRef& to) {
  const Lock lock(mutex_);
  for (const auto& event : {from, to}) {
    TORCH_CHECK(event->stream >= 0 && queues_[static_cast<size_t>(event->stream)].ended >= event->job, "standin: an event has not been reached yet");
  }
  return std::chrono::duration<double, std::milli>(to->time - from->time).count();
}

// Memory.

void* Runtime::allocate(int device, size_t bytes, int stream) {
  Lock lock(mutex_);
  Usage& usage = usage_[static_cast<size_t>(device)];
  const size_t rounded = (bytes + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes;
  if (usage.allocated + usage.cached + rounded > usage.limit) usage.cached = 0;  // what was freed serves again
  TORCH_CHECK_WITH(OutOfMemoryError, rounded <= usage.limit && usage.allocated <= usage.limit - rounded, "standin out of memory. Tried to allocate ", mebibytes(bytes),
                   ". Device ", device, " has a limit of ", mebibytes(usage.limit), ", of which ", mebibytes(usage.allocated), " are allocated.");
  throw_failure(device);
  usage.allocated += rounded;
  usage.cached -= std::min(usage.cached, rounded);
  usage.allocated_max = std::max(usage.allocated_max, usage.allocated);
  auto block = memory_.allocate(Place::kDevice, device, bytes);
  block->home = stream;
  if (Graph* graph = graphs_[static_cast<size_t>(stream)]) {
    block->is_graphs = block->is_held = true;
    graph->memory.push_back(block);
  }
  const Range range{block->begin, block->bytes, true};
  uint8_t* shadow = shadow_of(reinterpret_cast<void*>(block->begin));
  push(lock, stream, "an allocation", {range}, [shadow, size = block->bytes] { std::memset(shadow, kPoison, size); });
  return reinterpret_cast<void*>(block->begin);
}

void* Runtime::allocate_pinned(size_t bytes) {
  const Lock lock(mutex_);
  const auto block = memory_.allocate(Place::kPinned, -1, bytes);
  std::memset(shadow_of(reinterpret_cast<void*>(block->begin)), kPoison, bytes);
  return reinterpret_cast<void*>(block->begin);
}

// A block that is freed serves later work of its own stream; pinned memory serves again when the copies that use it have ended, as PyTorch's
// allocator of it does. Nobody can be told here by an exception: it is told by what is submitted or waited for next.
void Runtime::free(void* address) {
  BlockRef block;  // its pages go back outside the lock
  const Lock lock(mutex_);
  block = memory_.find(address);
  if (block == nullptr) return find_misuse("memory was freed that is not allocated");
  if (block->is_held) {
    block->is_kept = true;
    return;
  }
  memory_.forget(*block);
  if (block->place == Place::kPinned) {
    const bool unread = std::any_of(transfers_.begin(), transfers_.end(), [&](const Transfer& one) { return one.block == block && one.source.empty(); });
    return find_misuse(unread ? "the host freed pinned memory that a copy from the device writes to, without waiting for the copy: a synchronisation is missing" : "");
  }
  Clock known = host_;
  merge(known, queues_[static_cast<size_t>(block->home)].known);
  if (!block->is_graphs) find_misuse(misuse_by_free(*block, known));
  give_back(*block);
}

void Runtime::give_back(const Block& block) {
  memory_.forget(block);
  Usage& usage = usage_[static_cast<size_t>(block.device)];
  const size_t rounded = (block.asked_bytes + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes;
  usage.allocated -= rounded;
  usage.cached += rounded;
}

void Runtime::record_stream(const void* address, int stream) {
  const Lock lock(mutex_);
  if (const auto block = memory_.find(address)) block->recorded.insert(stream);
}

Range Runtime::allocation_at(const void* address) {
  const Lock lock(mutex_);
  const auto block = memory_.find(address);
  return block == nullptr ? Range{} : Range{block->begin, block->asked_bytes, true};
}

int Runtime::device_of(const void* address) {
  const Lock lock(mutex_);
  const auto block = memory_.find(address);
  return block == nullptr ? -1 : block->device;
}

void Runtime::empty_cache() {
  const Lock lock(mutex_);
  for (auto& usage : usage_) usage.cached = 0;
  tell_holdings();
}

// For other processes; the file is there whole or not at all.
void Runtime::tell_holdings() const {
  if (settings_.holdings.empty()) return;
  const std::string name = settings_.holdings + "/" + std::to_string(::getpid()), fresh = name + ".new";
  std::ofstream out(fresh);
  for (const auto& usage : usage_) out << usage.limit << ' ' << usage.allocated << ' ' << usage.cached << '\n';
  out.close();
  std::rename(fresh.c_str(), name.c_str());
}

Usage Runtime::usage(int device) {
  const Lock lock(mutex_);
  return usage_[static_cast<size_t>(device)];
}

void Runtime::set_limit(int device, size_t bytes) {
  const Lock lock(mutex_);
  usage_[static_cast<size_t>(device)].limit = std::min(bytes, settings_.memory_bytes);
  tell_holdings();
}

std::vector<std::string> Runtime::findings() {
  const Lock lock(mutex_);
  return findings_;
}

}  // namespace standin
