// Streams with a thread each, events, what the host knows to have ended, and errors that come late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"

namespace standin {

struct Event {
  int stream = -1;  // -1: never recorded
  uint64_t job = 0;
  Clock known{};    // to have ended, once the job has
  std::chrono::steady_clock::time_point time;
};
using EventRef = std::shared_ptr<Event>;

// Jobs of a stream that were recorded in place of being carried out, to be submitted again and again. What was allocated meanwhile is the graph's.
struct Graph {
  struct Step {
    std::string name;
    std::vector<Range> ranges;
    std::function<void()> run;
  };
  std::vector<Step> steps;
  std::vector<BlockRef> memory;
  std::string failure;  // why it cannot be used
};

struct Usage {
  size_t allocated = 0;
  size_t cached = 0;  // freed, and not given back by empty_cache
  size_t allocated_max = 0;
  size_t limit = 0;
};

// Of the environment; see `read_settings`.
struct Settings {
  int devices = 2;
  size_t memory_bytes = 0;
  std::chrono::microseconds delay{};
  bool waits = true;           // a synchronisation waits
  bool copies_in_order = true; // copies run on the current stream
  std::string holdings;        // a folder
};

class Runtime {
 public:
  static Runtime& get();  // lives as long as the process

  const Settings& settings() const { return settings_; }

  // Puts a job at the end of a stream. What it fails by is told at a later synchronisation. Throws what earlier jobs failed by, and c10::Error for a
  // job that does not wait for what it uses.
  void submit(int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run);
  // As submit; what the kernel lacks (not what values are wrong) is told at once. The host does not know thereby that the job has ended.
  void submit_unproven(int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run);
  // As submit, and waits; what the job throws is thrown at once.
  void submit_and_wait(int stream, const std::string& name, const std::vector<Range>& ranges, const std::function<void()>& run);

  // Copies between pinned memory and a device that the host does not wait for.
  void submit_to_pinned(int stream, const std::vector<Range>& ranges, const Range& target, std::function<void()> run);
  void submit_from_pinned(int stream, const std::vector<Range>& ranges, const Range& source, std::function<void()> run);

  // Throws c10::Error for a stream that records already, and of what could not be recorded.
  void begin_graph(int stream, Graph* graph);
  void end_graph(int stream);
  bool records(int stream);
  // `first` is carried out before the graph's own jobs.
  void replay(int stream, const Graph& graph, std::function<void()> first);
  void release(const Graph& graph);

  void synchronize(int stream);
  void synchronize_device(int device);
  bool query(int stream);
  void record(const EventRef& event, int stream);
  void wait(const EventRef& event, int stream);
  bool query(const EventRef& event);
  void synchronize(const EventRef& event);
  double elapsed_milliseconds(const EventRef& from, const EventRef& to);

  void* allocate(int device, size_t bytes, int stream);
  void* allocate_pinned(size_t bytes);
  void free(void* address);
  void record_stream(const void* address, int stream);
  // All of the allocation that holds the address.
  Range allocation_at(const void* address);
  int device_of(const void* address);
  void empty_cache();
  Usage usage(int device);
  void set_limit(int device, size_t bytes);
  std::vector<std::string> findings();

 private:
  void tell_holdings() const;  // under the lock
  struct Job {
    std::function<void()> run;
    std::vector<BlockRef> blocks;
    std::chrono::steady_clock::time_point start;
  };
  struct Queue {
    std::deque<Job> jobs;
    uint64_t submitted = 0;
    uint64_t ended = 0;
    Clock known{};
    bool running = false;
  };
  // A copy between the host and a device that the host has not waited for.
  struct Transfer {
    Range range;
    int stream = 0;
    uint64_t job = 0;
    BlockRef block;
    std::vector<uint8_t> source;  // what it held when the copy was submitted
  };
  using Lock = std::unique_lock<std::mutex>;

  Runtime();
  void serve(int stream);
  uint64_t push(Lock& lock, int stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> run);
  std::vector<BlockRef> hold(Queue& queue, int stream, const std::string& name, const std::vector<Range>& ranges);
  void throw_failure(int device);
  void forbid_in_graph(int stream, const std::string& what);
  void give_back(const Block& block);
  void find_misuse(const std::string& misuse);
  void throw_misuse();
  void settle(Lock& lock, int stream, uint64_t job, const Clock& known);
  void learn(const Clock& known);
  void fail(int device, const std::exception_ptr& failure);
  void add_transfer(int stream, const Range& range, bool keep);

  Settings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, kStreams> queues_;
  std::array<Graph*, kStreams> graphs_{};  // that streams record into
  Memory memory_;
  Clock host_{};
  std::array<Usage, kDevicesMax> usage_;
  std::array<std::exception_ptr, kDevicesMax> failures_;
  std::array<bool, kDevicesMax> lost_{};
  std::vector<Transfer> transfers_;
  std::vector<std::string> findings_;
  std::string misuse_;  // that nobody has been told of
};

}  // namespace standin
