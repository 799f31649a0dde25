#include "tier2/proof.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace forebay::worker {

namespace {

constexpr double kDifferenceMax = 1.0 / 32;  // of the largest value; beyond it a result is rounding, or wrong
constexpr double kErrorTimes = 32;           // of tier 1's error, in a library's, at least
constexpr double kErrorTimesMax = 1024;
constexpr double kRoundings = 8;             // and so often the rounding that is allowed without an exact result, since tier 1's may be near it by chance
constexpr size_t kNearby = 2;

// Of the largest value, by the dtype that was computed in.
double rounding_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return std::ldexp(1.0, -40);
    case c10::ScalarType::Float:
      return std::ldexp(1.0, -16);
    case c10::ScalarType::Half:
      return std::ldexp(1.0, -8);
    default:
      return std::ldexp(1.0, -6);
  }
}

// Of a number next to 1.
double last_bit_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return std::ldexp(1.0, -52);
    case c10::ScalarType::Float:
      return std::ldexp(1.0, -23);
    case c10::ScalarType::Half:
      return std::ldexp(1.0, -10);
    default:
      return std::ldexp(1.0, -7);
  }
}

// A library's error, of tier 1's: one that adds n numbers one by one is off by as much as n times their rounding, one that adds them by halves, as
// PyTorch does, by as much as its root. No sum is of more than the largest storage holds.
double error_times(const Specialization& specialization) {
  int64_t numbers = 0;
  for (const auto& place : specialization.places()) {
    if (place.has_dtype) numbers = std::max(numbers, place.bytes / static_cast<int64_t>(c10::elementSize(place.dtype)));
  }
  return std::clamp(std::sqrt(static_cast<double>(numbers) / 2), kErrorTimes, kErrorTimesMax);
}

double largest_of(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item().toDouble(); }

// Evenly spread between -1 and 1, others each time.
at::Tensor spread(const at::Tensor& like) {
  auto chance = at::detail::createCPUGenerator(std::random_device{}());
  return at::rand(like.sizes(), chance, at::TensorOptions().dtype(at::kDouble)).mul_(2).sub_(1);
}

enum class Change { kLastBit, kTwofold };

// The inputs with other values of the same signs, as far as they are storages of fractions. Windows may lie upon each other, and stay.
std::vector<at::Tensor> changed(const std::vector<at::Tensor>& inputs, const Specialization& specialization, Change change) {
  std::vector<at::Tensor> others(inputs);
  auto other = others.begin();
  for (const auto& place : specialization.places()) {
    if (!place.is_input) continue;
    if (c10::isFloatingType(other->scalar_type()) && !place.is_windowed) {
      const auto by = change == Change::kTwofold ? spread(*other).exp2_() : spread(*other).mul_(last_bit_of(other->scalar_type())).add_(1);
      *other = other->clone().copy_(other->to(at::kDouble).mul(by));
    }
    ++other;
  }
  return others;
}

}  // namespace

double farthest(const at::Tensor& one, const at::Tensor& other) { return largest_of(one.to(at::kDouble).sub(other)); }

void RoundingOfPieces::note(const at::Tensor& result, const at::Tensor& expected) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  is_alike_ = is_alike_ && result.scalar_type() == expected.scalar_type() && result.sizes() == expected.sizes();
  if (!is_alike_ || result.numel() == 0) return;
  dtype_ = expected.scalar_type();
  if (!c10::isFloatingType(dtype_)) {
    is_alike_ = at::equal(result, expected);
    return;
  }
  const at::Tensor one = result.to(at::kDouble), other = expected.to(at::kDouble);
  const at::Tensor finite = at::isfinite(other);
  const at::Tensor zeros = at::zeros_like(other);
  const at::Tensor odd_one = at::where(finite, zeros, one), odd_other = at::where(finite, zeros, other);
  is_alike_ = odd_one.eq(odd_other).logical_or(odd_one.isnan().logical_and(odd_other.isnan())).all().item().toBool();
  const at::Tensor even_one = at::where(finite, one, zeros), even_other = at::where(finite, other, zeros);
  largest_ = std::max(largest_, even_other.abs().max().item().toDouble());
  const double farthest = even_one.sub(even_other).abs().max().item().toDouble();
  farthest_ = std::isnan(farthest) ? farthest : std::max(farthest_, farthest);
}

bool RoundingOfPieces::holds() const {
  return is_alike_ && (!c10::isFloatingType(dtype_) || farthest_ <= largest_ * rounding_of(dtype_));
}

bool is_within_rounding(const at::Tensor& result, const at::Tensor& expected) {
  RoundingOfPieces pieces;
  pieces.note(result, expected);
  return pieces.holds();
}

Reference::Reference(const SegmentRun& run, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> results)
    : results_(std::move(results)), exact_(results_of(run, inputs, Precision::kDouble)), error_times_(error_times(run.specialization)) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t count = 0; count < kNearby; ++count) nearby_.push_back(results_of(run, changed(inputs, run.specialization, Change::kLastBit), Precision::kOwn));
}

double Reference::error(size_t output) const {
  double error = farthest(results_[output], exact_[output]);
  for (const auto& results : nearby_) error = std::max(error, farthest(results[output], exact_[output]));
  return error;
}

bool Reference::holds(size_t output, const at::Tensor& result) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto &of_tier_1 = results_[output], &exact = exact_[output];
  if (!c10::isFloatingType(exact.scalar_type()) || result.scalar_type() != of_tier_1.scalar_type() || result.sizes() != exact.sizes()) return false;
  const double bound = error_times_ * error(output) + kRoundings * rounding_of(of_tier_1.scalar_type()) * largest_of(of_tier_1);
  return std::isfinite(bound) && farthest(result, exact) <= bound;  // not where one is no number
}

std::string Reference::distances(size_t output, const at::Tensor& result) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!c10::isFloatingType(exact_[output].scalar_type()) || result.sizes() != exact_[output].sizes()) return "";
  char text[100];
  std::snprintf(text, sizeof(text), ": it is off by %.2g, tier 1 by %.2g, of %.2g", farthest(result, exact_[output]), error(output), largest_of(exact_[output]));
  return text;
}

std::string Proof::difference(const std::vector<at::Tensor>& results) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t output = 0; output < results.size(); ++output) {
    const auto differs = "result " + std::to_string(output) + " of " + std::to_string(results.size()) + " is not that of tier 1";
    try {
      if (is_same(output, results[output])) continue;
      return differs + reference_->distances(output, results[output]);
    } catch (const std::exception& error) {
      return differs + ", and nothing is known in double precision: " + std::string(error.what()).substr(0, 200);
    }
  }
  for (const size_t output : mere_rounding_) {
    if (!is_same_elsewhere(output)) return "result " + std::to_string(output) + " is not that of tier 1 from other inputs" + reference_elsewhere_->distances(output, results_elsewhere_[output]);
  }
  return "";
}

bool Proof::is_same(size_t output, const at::Tensor& result) {
  const auto& expected = expected_[output];
  if (is_within_rounding(result, expected)) return true;
  if (!reference_) reference_.emplace(run_, inputs_, expected_);
  if (farthest(result, expected) > kDifferenceMax * largest_of(expected)) mere_rounding_.insert(output);
  return reference_->holds(output, result);
}

// Where a result is rounding alone, these inputs do not tell what it would be. At others it may be something; if it is rounding there, too, it is so
// by its nature, as the gradient of a bias before a normalization.
bool Proof::is_same_elsewhere(size_t output) {
  if (!reference_elsewhere_) {
    const auto inputs = changed(inputs_, run_.specialization, Change::kTwofold);
    results_elsewhere_ = library_.run(inputs);
    expected_elsewhere_ = results_of(run_, inputs, Precision::kOwn);
    reference_elsewhere_.emplace(run_, inputs, expected_elsewhere_);
  }
  const auto& result = results_elsewhere_[output];
  return is_within_rounding(result, expected_elsewhere_[output]) || reference_elsewhere_->holds(output, result);
}

}  // namespace forebay::worker
