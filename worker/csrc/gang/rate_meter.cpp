#include "gang/rate_meter.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/addmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/clock.h"
#include "gang/own_calls.h"

namespace forebay::worker {

namespace {

constexpr int kTimesLeast = 5, kTimesMost = 100;  // of which the quickest counts: others may use the processors
constexpr double kPatienceSeconds = 25e-3;        // after the least
constexpr double kSlowSeconds = 0.1;              // what takes longer is measured once
constexpr double kLongEnough = 2e-4;              // seconds of a product: a longer one is likelier to be interrupted each time
constexpr int64_t kSmallestSide = 128;
constexpr int64_t kThinRows = 16, kThinColumns = 1024;
constexpr double kThinSeconds = 20e-3;  // of a thin product, at the rate of a square one
constexpr size_t kArrays = 8;  // all together are more than caches hold
constexpr int64_t kArrayBytes = int64_t{8} << 20, kFastArrayBytes = int64_t{64} << 20, kArrayBytesLeast = int64_t{1} << 20;  // kFast: where adding such takes no time
constexpr int kSmallCalls = 64;
constexpr int64_t kChannels = 64, kPixels = 16, kFilter = 3, kImagesLeast = 8, kImagesMost = 512;
constexpr int64_t kWindow = 2;
constexpr int64_t kSumElements = int64_t{1} << 20;
constexpr uint64_t kDraft = std::numeric_limits<uint64_t>::max();  // no storage's number, nor are those before
const DeviceRates kOfNothing{{{c10::kFloat, {50e12, 0, 0}}}, 1e12, 5e-6, 10e9, 1e-4, 0, 0};

double seconds_of(const std::function<void()>& work) {
  const auto timed = [&] {
    const uint64_t begin_ns = now_ns();
    work();
    return 1e-9 * static_cast<double>(now_ns() - begin_ns);
  };
  timed();  // may load libraries
  double least = timed(), all = least;
  for (int time = 1; all < kSlowSeconds && (time < kTimesLeast || (time < kTimesMost && all < kPatienceSeconds)); ++time) {
    const double seconds = timed();
    least = std::min(least, seconds);
    all += seconds;
  }
  return least;
}

double seconds_alone(const Device& device, const std::function<void()>& work) {
  return seconds_of([&] {
    work();
    device.synchronize();
  });
}

double flops_of(int64_t rows, int64_t inner, int64_t columns) { return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(columns); }

// What all devices compute at the same time, each on arrays of its own: so what they share of a host, as the way to its memory, is counted as shared.
class RateMeter {
 public:
  // `array_bytes`: of each array. Throws what a device without room for them throws, here or when they are used.
  RateMeter(Gang& gang, const Device& device, int64_t array_bytes) : gang_(gang), device_(device), array_bytes_(array_bytes) {
    for (size_t array = 0; array < kArrays; ++array) {
      arrays_.push_back(at::zeros({array_bytes / 4}, at::TensorOptions(at::kFloat).device(device.where())));
      for_each_other([&](Rank& rank) { rank.allocate(id(array), array_bytes); });
    }
  }
  ~RateMeter() {
    for (size_t array = 0; array < arrays_.size(); ++array) for_each_other([&](Rank& rank) { rank.free(id(array)); });
  }
  RateMeter(const RateMeter&) = delete;
  RateMeter& operator=(const RateMeter&) = delete;

  DeviceRates measured() {
    DeviceRates rates;
    const Call least = addition(0, 1, 1);
    rates.call_s = seconds_at_once({std::vector<Call>(kSmallCalls, least)}) / kSmallCalls;
    waiting_s_ = std::max(seconds_at_once({{least}}) - rates.call_s, 0.0);
    std::vector<c10::ScalarType> types{c10::kFloat, c10::kDouble};
    if (!device_.is_host()) types.insert(types.end(), {c10::kHalf, c10::kBFloat16});
    for (const auto type : types) rates.products[type] = products(type, rates.call_s);
    std::vector<std::vector<Call>> additions;
    for (size_t array = 0; array < kArrays; array += 2) additions.push_back({addition(array, array + 1, array_bytes_ / 4)});
    rates.bytes_per_s = 3.0 * static_cast<double>(array_bytes_) / seconds_at_once(additions);
    const double ratio = convolution_flops_per_s() / alone_flops_per_s_;
    for (auto& [type, of_type] : rates.products) of_type.convolution_flops_per_s = ratio * of_type.flops_per_s;
    const double share = rates.products[c10::kFloat].flops_per_s / alone_flops_per_s_;  // of what one device does while it is alone
    rates.functions_per_s = share * functions_per_s(rates.call_s);
    rates.compared_per_s = share * compared_per_s(rates.call_s);
    return rates;
  }

 private:
  // As every device carries it out, and this one.
  struct Call {
    uint64_t definition;
    wire::Words words;
    std::function<void()> own;
  };

  static uint64_t id(size_t array) { return kDraft - array; }
  template <class Act>
  void for_each_other(const Act& act) {
    for (int place = 1; place < static_cast<int>(gang_.size()); ++place) act(gang_.rank(place));
  }
  at::Tensor matrix(size_t array, c10::ScalarType type, int64_t rows, int64_t columns) const {
    return arrays_[array].view(type).narrow(0, 0, rows * columns).view({rows, columns});
  }

  Call addition(size_t target, size_t other, int64_t elements) {
    const uint64_t definition = in_place(gang_.templates(), "add_.Tensor", {dense(at::kFloat, {elements}), dense(at::kFloat, {elements}), number_of(wire::Tag::kScalarDouble)});
    const at::Tensor sum = arrays_[target].narrow(0, 0, elements), summand = arrays_[other].narrow(0, 0, elements);
    return {definition, {id(target), 0, id(other), 0, wire::bits_word(1)}, [sum, summand] { sum.add_(summand); }};
  }

  // Of the arrays 0 and 1 and another one.
  Call product(size_t factor, c10::ScalarType type, int64_t rows, int64_t inner, int64_t columns) {
    const auto scalar = number_of(wire::Tag::kScalarDouble);
    const uint64_t definition = in_place(gang_.templates(), "addmm_", {dense(type, {rows, columns}), dense(type, {rows, inner}), dense(type, {inner, columns}), scalar, scalar});
    at::Tensor made = matrix(0, type, rows, columns);
    const at::Tensor left = matrix(1, type, rows, inner), right = matrix(factor, type, inner, columns);
    return {definition, {id(0), 0, id(1), 0, id(factor), 0, wire::bits_word(1), wire::bits_word(1)}, [made, left, right]() mutable { made.addmm_(left, right); }};
  }

  // Of the calls of one turn, of several that touch other arrays each.
  double seconds_at_once(const std::vector<std::vector<Call>>& turns) {
    size_t turn = 0;
    const double seconds = seconds_of([&] {
      const auto& calls = turns[turn++ % turns.size()];
      for_each_other([&](Rank& rank) {
        for (const auto& call : calls) gang_.send(rank.number(), call.definition, gang_.templates().own_plan(call.definition), call.words, 0);
        rank.flush();
      });
      for (const auto& call : calls) call.own();
      device_.synchronize();
      for (const auto& [place, failure] : gang_.settle_each()) throw CommandError(failure.code, failure.message);
    });
    return std::max(seconds - waiting_s_, 1e-9);
  }

  DeviceRates::Products products(c10::ScalarType type, double call_s) {
    const auto item_bytes = static_cast<int64_t>(c10::elementSize(type));
    DeviceRates::Products rates;
    for (int64_t side = kSmallestSide;; side *= 2) {
      const Call square = product(2, type, side, side, side);
      const double seconds = seconds_at_once({{square}});
      if (seconds < kLongEnough && 4 * side * side * item_bytes <= array_bytes_) continue;
      rates.flops_per_s = flops_of(side, side, side) / seconds;
      if (type == c10::kFloat) alone_flops_per_s_ = std::max(rates.flops_per_s, flops_of(side, side, side) / seconds_alone(device_, square.own));
      break;
    }
    const auto soon = static_cast<int64_t>(rates.flops_per_s * kThinSeconds / flops_of(kThinRows, 1, kThinColumns));
    const int64_t inner = std::clamp(soon, kThinRows, array_bytes_ / item_bytes / kThinColumns);
    std::vector<std::vector<Call>> thin;
    for (size_t factor = 2; factor < kArrays; ++factor) thin.push_back({product(factor, type, kThinRows, inner, kThinColumns)});
    const double seconds = seconds_at_once(thin) - call_s;
    const double times = seconds * rates.flops_per_s / flops_of(kThinRows, inner, kThinColumns);
    rates.half_side = static_cast<double>(kThinRows) * std::max(times - 1, 0.0);
    return rates;
  }

  double convolution_flops_per_s() const {
    const auto options = at::TensorOptions(at::kFloat).device(device_.where());
    const at::Tensor filter = at::zeros({kChannels, kChannels, kFilter, kFilter}, options);
    for (int64_t images = kImagesLeast;; images *= 4) {
      const at::Tensor image = at::zeros({images, kChannels, kPixels, kPixels}, options);
      const double seconds = seconds_alone(device_, [&] { at::conv2d(image, filter, {}, 1, /*padding=*/1); });
      if (seconds >= kLongEnough || images >= kImagesMost) return flops_of(images * kPixels * kPixels, kChannels * kFilter * kFilter, kChannels) / seconds;
    }
  }

  double functions_per_s(double call_s) const {
    at::Tensor made = arrays_[0];
    const double seconds = seconds_alone(device_, [&] { at::exp_out(made, arrays_[1]); });
    return static_cast<double>(made.numel()) / std::max(seconds - call_s, 1e-9);
  }

  double compared_per_s(double call_s) const {
    const at::Tensor image = arrays_[0].narrow(0, 0, array_bytes_ / 16).view({-1, 1, kPixels, kPixels});
    const double seconds = seconds_alone(device_, [&] { at::max_pool2d_with_indices(image, {kWindow, kWindow}); });
    return static_cast<double>(image.numel()) / std::max(seconds - call_s, 1e-9);
  }

  Gang& gang_;
  const Device& device_;
  const int64_t array_bytes_;
  std::vector<at::Tensor> arrays_;  // of floats; the other devices have as many
  double waiting_s_ = 0;            // for the other devices, at the end
  double alone_flops_per_s_ = 0;    // of products of floats, while the other devices do nothing
};

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

int64_t array_bytes_for(const Device& device) {
  at::Tensor one = at::zeros({kArrayBytes / 4}, at::TensorOptions(at::kFloat).device(device.where()));
  const at::Tensor other = at::zeros_like(one);
  return seconds_alone(device, [&] { one.add_(other); }) < kLongEnough ? kFastArrayBytes : kArrayBytes;
}

// On smaller arrays where a device has no room.
DeviceRates rates_of_devices(Gang& gang, const Device& device) {
  for (int64_t bytes = array_bytes_for(device);; bytes /= 2) {
    try {
      return RateMeter(gang, device, bytes).measured();
    } catch (const wire::WireError&) {
      throw;
    } catch (const std::exception&) {
      gang.settle_each();
      device.release_cache();
      if (bytes <= kArrayBytesLeast) throw;
    }
  }
}

}  // namespace

DeviceRates measured_rates(Gang& gang, const Device& device) {
  if (!device.computes()) return kOfNothing;
  DeviceRates rates = rates_of_devices(gang, device);
  rates.link_latency_s = seconds_of_sum(gang, device, 1);
  const double parts = static_cast<double>(gang.size()), sent = 2.0 * sizeof(float) * static_cast<double>(kSumElements) * (parts - 1) / parts;
  rates.link_bytes_per_s = sent / std::max(seconds_of_sum(gang, device, kSumElements) - rates.link_latency_s, 1e-9);
  device.release_cache();
  return rates;
}

}  // namespace forebay::worker
