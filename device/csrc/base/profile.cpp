#include "base/profile.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "base/devices.h"
#include "base/leaf_mutex.h"
#include "base/locations.h"

namespace forebay {
namespace {

struct Sum {
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t ns = 0;
  uint64_t longest_ns = 0;
};

using Key = std::tuple<c10::DeviceIndex, Activity, const OperatorInfo*, Place>;

LeafMutex sums_mutex;
std::map<Key, Sum>& sums() {
  static auto* all = new std::map<Key, Sum>;  // a thread may book as the process ends
  return *all;
}

uint64_t stretches = 0;  // guarded by sums_mutex

thread_local ActivityClock* innermost = nullptr;

struct Busy {
  std::atomic<uint64_t> before{0};  // in earlier sessions
  std::atomic<uint64_t> now{0};
};
std::array<Busy, kDevicesMax> busy;

const char* name_of(Activity activity) {
  constexpr std::array names{"record", "lease", "item", "read", "synchronize", "ask", "upload", "send"};
  return names.at(static_cast<size_t>(activity));
}

}  // namespace

void ActivityClock::begin() {
  if (activity_ == Activity::kRead && innermost != nullptr && innermost->activity_ == Activity::kItem) return;  // the way in which an item comes
  stretch_ = profiled_stretch.load();
  outer_ = innermost;
  innermost = this;
  inner_ = {};
  start_ = std::chrono::steady_clock::now();
}

void ActivityClock::end() {
  const auto lived = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_);
  innermost = outer_;
  if (outer_ != nullptr) outer_->inner_ += lived;
  const auto own = static_cast<uint64_t>((lived - inner_).count());
  const Place place = activity_ == Activity::kRecord ? Place{} : current_place();
  const std::lock_guard lock(sums_mutex);
  if (stretch_ != profiled_stretch.load()) return;
  auto& sum = sums()[{device_, activity_, operator_, place}];
  ++sum.count;
  sum.bytes += static_cast<uint64_t>(bytes_);
  sum.ns += own;
  sum.longest_ns = std::max(sum.longest_ns, own);
}

void begin_profile() {
  const std::lock_guard lock(sums_mutex);
  TORCH_CHECK(profiled_stretch == 0, "a profile is being taken already; end that one first");
  sums().clear();
  profiled_stretch = ++stretches;
}

std::vector<ActivityTotal> end_profile() {
  std::map<Key, Sum> taken;
  {
    const std::lock_guard lock(sums_mutex);
    profiled_stretch = 0;
    taken.swap(sums());
  }
  std::vector<ActivityTotal> totals;
  for (const auto& [key, sum] : taken) {
    const auto& [device, activity, info, place] = key;
    ActivityTotal total{device, name_of(activity), "", 0, "", sum.count, sum.bytes, sum.ns, sum.longest_ns};
    if (info != nullptr) {
      total.subject = info->overload.empty() ? info->name : info->name + "." + info->overload;
    } else {
      const auto line = line_of(place);
      total.subject = line.file;
      total.line = line.number;
      total.function = line.function;
    }
    totals.push_back(std::move(total));
  }
  return totals;
}

void note_busy(c10::DeviceIndex device, uint64_t ns) { busy[static_cast<size_t>(device)].now.store(ns, std::memory_order_relaxed); }

void note_session(c10::DeviceIndex device) {
  auto& own = busy[static_cast<size_t>(device)];
  own.before.fetch_add(own.now.exchange(0));
}

uint64_t busy_ns(c10::DeviceIndex device) {
  const auto& own = busy[static_cast<size_t>(device)];
  return own.before.load() + own.now.load();
}

}  // namespace forebay
