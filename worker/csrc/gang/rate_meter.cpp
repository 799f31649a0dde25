#include "gang/rate_meter.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/clock.h"

namespace forebay::worker {

namespace {

constexpr int kTimesLeast = 5, kTimesMost = 100;        // of which the quickest counts: others may use the processors
constexpr double kPatienceSeconds = 20e-3;                // after the least
constexpr double kLongEnough = 1e-3;                    // seconds of a product
constexpr int64_t kSmallestSide = 128, kLargestSide = 8192;
constexpr int64_t kReadElements = int64_t{2} << 20;
constexpr int64_t kSumElements = int64_t{1} << 20;
constexpr uint64_t kDraft = std::numeric_limits<uint64_t>::max();  // no storage's number
const DeviceRates kOfNothing{{{c10::kFloat, 50e12}}, 1e12, 5e-6, 10e9, 1e-4};

double seconds_of(const std::function<void()>& work) {
  work();
  double least = std::numeric_limits<double>::max(), all = 0;
  for (int time = 0; time < kTimesLeast || (time < kTimesMost && all < kPatienceSeconds); ++time) {
    const uint64_t begin_ns = now_ns();
    work();
    const double seconds = 1e-9 * static_cast<double>(now_ns() - begin_ns);
    least = std::min(least, seconds);
    all += seconds;
  }
  return least;
}

double flops_per_s(const Device& device, c10::ScalarType type) {
  for (int64_t side = kSmallestSide;; side *= 2) {
    const at::Tensor factor = at::zeros({side, side}, at::TensorOptions(type).device(device.where()));
    at::Tensor product = at::zeros_like(factor);
    const double seconds = seconds_of([&] {
      at::mm_out(product, factor, factor);
      device.synchronize();
    });
    if (seconds >= kLongEnough || side >= kLargestSide) return 2.0 * static_cast<double>(side * side * side) / seconds;
  }
}

double seconds_of_addition(const Device& device, int64_t elements) {
  const at::Tensor one = at::zeros({elements}, at::TensorOptions(at::kFloat).device(device.where()));
  at::Tensor sum = at::zeros_like(one);
  return seconds_of([&] {
    at::add_out(sum, one, one);
    device.synchronize();
  });
}

double seconds_of_sum(Gang& gang, const Device& device, int64_t elements) {
  const at::Tensor own = at::zeros({elements}, at::TensorOptions(at::kFloat).device(device.where()));
  for (int place = 1; place < static_cast<int>(gang.size()); ++place) gang.rank(place).allocate(kDraft, static_cast<int64_t>(own.nbytes()));
  const double seconds = seconds_of([&] {
    gang.sums().make({{kDraft, Sharing::kSum, own}});
    for (int place = 1; place < static_cast<int>(gang.size()); ++place) GangHomes::demand(gang.rank(place));
  });
  for (int place = 1; place < static_cast<int>(gang.size()); ++place) gang.rank(place).free(kDraft);
  return seconds;
}

}  // namespace

DeviceRates measured_rates(Gang& gang, const Device& device) {
  if (!device.computes()) return kOfNothing;
  DeviceRates rates;
  std::vector<c10::ScalarType> types{c10::kFloat, c10::kDouble};
  if (!device.is_host()) types.insert(types.end(), {c10::kHalf, c10::kBFloat16});
  for (const auto type : types) rates.flops_per_s[type] = flops_per_s(device, type);
  const double read = 3.0 * sizeof(float) * static_cast<double>(kReadElements);
  rates.call_s = seconds_of_addition(device, 1);
  rates.bytes_per_s = read / std::max(seconds_of_addition(device, kReadElements) - rates.call_s, 1e-9);
  rates.link_latency_s = seconds_of_sum(gang, device, 1);
  const double parts = static_cast<double>(gang.size()), sent = 2.0 * sizeof(float) * static_cast<double>(kSumElements) * (parts - 1) / parts;
  rates.link_bytes_per_s = sent / std::max(seconds_of_sum(gang, device, kSumElements) - rates.link_latency_s, 1e-9);
  device.release_cache();
  return rates;
}

}  // namespace forebay::worker
