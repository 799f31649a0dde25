#include "recomputation/call_repeater.h"

#include <algorithm>
#include <string_view>

namespace forebay::worker {

namespace {

constexpr int64_t kLeastPart = 64;  // of the limit
constexpr double kBytesPerSecond = 1e12, kOpSeconds = 5e-6, kProductsFactor = 16;  // of an accelerator

}  // namespace

double estimated_seconds(const Plan& plan) {
  const auto name = base_name(plan);
  const bool is_product = name.find("mm") != std::string_view::npos || name.find("convolution") != std::string_view::npos || name.find("attention") != std::string_view::npos;
  return kOpSeconds + static_cast<double>(plan.given_bytes + plan.new_bytes) / kBytesPerSecond * (is_product ? kProductsFactor : 1);
}

int64_t DeviceRepeater::lacking(const Need& need, Room) const { return need.bytes - (storages_.limit_bytes() - storages_.used_bytes() + storages_.absent_bytes()); }

int64_t DeviceRepeater::least_bytes() const { return storages_.limit_bytes() / kLeastPart; }

double DeviceRepeater::seconds_of(const Plan& plan, double measured_seconds) const { return device_.is_host() ? measured_seconds : estimated_seconds(plan); }

void DeviceRepeater::repeat(const RecordedCall& call, const std::vector<uint64_t>& results) {
  caller_.rerun(call.plan, call.words, [&](uint64_t id) { return std::find(results.begin(), results.end(), id) == results.end() ? nullptr : &storages_.at(id); });
}

}  // namespace forebay::worker
