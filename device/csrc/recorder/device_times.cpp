#include "recorder/device_times.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/devices.h"
#include "base/leaf_mutex.h"
#include "base/waiting.h"
#include "stream/stream.h"

namespace forebay {
namespace {

using wire::Command;

struct Launch {
  const OperatorInfo* info;
  uint64_t correlation;
  int64_t at_ns;  // of this host's monotonic clock
};

using Launches = std::unordered_map<uint64_t, Launch>;  // by sequence

LeafMutex launches_mutex;
std::array<Launches, kDevicesMax>& launches() {
  static auto* all = new std::array<Launches, kDevicesMax>;
  return *all;
}

std::atomic<uint64_t> stretch{0};

// The operators that run on a thread. What an earlier stretch left open counts for nothing.
struct Open {
  uint64_t stretch = 0;
  std::vector<uint64_t> correlations;
};
thread_local Open open;

template <typename Clock>
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

std::string name_of(const OperatorInfo& info) {
  const auto name = info.name.substr(info.name.find(':') + 2);
  return info.overload.empty() ? name : name + "." + info.overload;
}

constexpr int kQuestions = 5;  // the fastest answer tells most of the worker's clock

// A call as its worker's clock has it.
struct Told {
  uint64_t sequence;
  int64_t start_ns;
  int64_t took_ns;
};

// How far a worker's clock is behind this host's monotonic one: no answer was given before its question or after it came, no call begun before it was launched.
class ClockOffset {
 public:
  void at_least(int64_t ns) { least_ns_ = std::max(least_ns_, ns); }
  void at_most(int64_t ns) { most_ns_ = std::min(most_ns_, ns); }
  int64_t middle() const { return least_ns_ + (most_ns_ - least_ns_) / 2; }

 private:
  int64_t least_ns_ = std::numeric_limits<int64_t>::min() / 2;
  int64_t most_ns_ = std::numeric_limits<int64_t>::max() / 2;
};

// The worker notes when it executes the next calls, as many as that.
void time_calls(CommandStream& stream, size_t calls) {
  const std::lock_guard lock(stream.commands().mutex());
  auto& out = stream.commands().command();
  const size_t before = out.size();
  out.command(Command::kTime);
  out.varint(calls);
  stream.commands().note_definition(before, Definitions::Kind::kTime);
  stream.commands().appended();
}

void ask_worker(CommandStream& stream, ClockOffset& offset, std::vector<Told>& told) {
  const int64_t asked_ns = now_ns<std::chrono::steady_clock>();
  stream.ask_aside(Command::kTellTimes, [&](wire::Reader& body) {
    const int64_t answered_ns = now_ns<std::chrono::steady_clock>();
    const auto worker_ns = static_cast<int64_t>(body.varint());
    offset.at_least(asked_ns - worker_ns);
    offset.at_most(answered_ns - worker_ns);
    uint64_t sequence = 0;
    int64_t start_ns = 0;
    for (size_t left = body.count(wire::kTimesMax, "the number of times"); left > 0; --left) {
      sequence += body.varint();
      start_ns += body.zigzag();
      told.push_back({sequence, start_ns, static_cast<int64_t>(body.varint())});
    }
  });
}

// What the device's worker says of the calls that were launched.
void take_times(CommandStream& stream, const Launches& launched, std::vector<DeviceTime>& found) {
  ClockOffset offset;
  std::vector<Told> told;
  for (int question = 0; question < kQuestions; ++question) ask_worker(stream, offset, told);
  for (const auto& call : told) {
    const auto launch = launched.find(call.sequence);
    if (launch != launched.end()) offset.at_least(launch->second.at_ns - call.start_ns);
  }
  const int64_t since_1970_ns = now_ns<std::chrono::system_clock>() - now_ns<std::chrono::steady_clock>();
  for (const auto& call : told) {
    const auto launch = launched.find(call.sequence);
    if (launch == launched.end()) continue;  // recorded before the stretch began
    const int64_t start_ns = call.start_ns + offset.middle() + since_1970_ns;
    found.push_back({stream.device(), name_of(*launch->second.info), launch->second.correlation, start_ns, start_ns + call.took_ns});
  }
}

class WorkersTimes final : public DeviceTimes {
 public:
  void begin() override {
    TORCH_CHECK(!timing_calls, "the times of a device's calls are being noted already; end that profile first");
    ++stretch;
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) time_calls(CommandStream::of(device), wire::kTimesMax);
    timing_calls = true;
  }

  std::vector<DeviceTime> end() override {
    if (!timing_calls.exchange(false)) return {};
    std::array<Launches, kDevicesMax> launched;
    {
      const std::lock_guard lock(launches_mutex);
      std::swap(launched, launches());
    }
    std::vector<DeviceTime> found;
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      auto& stream = CommandStream::of(device);
      const auto& calls = launched[static_cast<size_t>(device)];
      if (stream.connected() && !calls.empty()) take_times(stream, calls, found);
      time_calls(stream, 0);
      if (calls.size() > wire::kTimesMax) TORCH_WARN("cuda:", static_cast<int>(device), " was given ", calls.size(), " calls in this profile; the times of the first ", wire::kTimesMax, " are in it");
    }
    return found;
  }

  void push(uint64_t correlation) override {
    if (open.stretch != stretch) open = {stretch, {}};
    open.correlations.push_back(correlation);
  }

  void pop() override {
    if (!open.correlations.empty()) open.correlations.pop_back();
  }
};

}  // namespace

DeviceTimes& device_times() {
  static auto* times = new WorkersTimes;
  return *times;
}

void remember_launch(const OperatorInfo& info, c10::DeviceIndex device, uint64_t sequence) {
  const uint64_t correlation = open.stretch == stretch && !open.correlations.empty() ? open.correlations.back() : 0;
  const std::lock_guard lock(launches_mutex);
  launches()[static_cast<size_t>(device)].insert_or_assign(sequence, Launch{&info, correlation, now_ns<std::chrono::steady_clock>()});
}

}  // namespace forebay
