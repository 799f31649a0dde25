// Whether a library computes what tier 1 does. Compilers add in another order, so both round, and differ: that is told from a fault.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tier2/library.h"
#include "tier2/reference.h"

namespace forebay::worker {

// As is_within_rounding, of a result that is told in pieces.
class RoundingOfPieces {
 public:
  void note(const at::Tensor& result, const at::Tensor& expected);
  bool holds() const;

 private:
  bool is_alike_ = true;  // but for rounding
  c10::ScalarType dtype_ = c10::ScalarType::Byte;
  double largest_ = 0;
  double farthest_ = 0;
};

// Whole numbers and truths the same, floating point within rounding of the largest value.
bool is_within_rounding(const at::Tensor& result, const at::Tensor& expected);

// The largest difference; no number where one of theirs is none.
double farthest(const at::Tensor& one, const at::Tensor& other);

// Results of tier 1 at some inputs, and how far rounding takes them.
class Reference {
 public:
  // `results`: tier 1's. Throws as results_of.
  Reference(const SegmentRun& run, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> results);

  // Whether a result is as near to what it is in double precision as those of tier 1 are: at these inputs, and at some that differ from them by
  // their last bit. What is zero but for rounding has no other scale.
  bool holds(size_t output, const at::Tensor& result) const;
  // How far both are from that, in words.
  std::string distances(size_t output, const at::Tensor& result) const;

 private:
  double error(size_t output) const;  // tier 1's

  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> exact_;
  double error_times_;
  std::vector<std::vector<at::Tensor>> nearby_;
};

// One comparison of a library with tier 1.
class Proof {
 public:
  // `inputs`: the library's; `expected`: what tier 1 has made of them.
  Proof(const SegmentRun& run, Library& library, std::vector<at::Tensor> inputs, std::vector<at::Tensor> expected)
      : run_(run), library_(library), inputs_(std::move(inputs)), expected_(std::move(expected)) {}

  // What the results have that tier 1's have not, in words; empty where there is nothing. Throws std::exception where the library fails at other
  // inputs.
  std::string difference(const std::vector<at::Tensor>& results);

 private:
  bool is_same(size_t output, const at::Tensor& result);
  bool is_same_elsewhere(size_t output);

  SegmentRun run_;
  Library& library_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> expected_;  // tier 1's
  std::optional<Reference> reference_;
  std::set<size_t> mere_rounding_;  // outputs that these inputs say little of
  std::vector<at::Tensor> results_elsewhere_, expected_elsewhere_;
  std::optional<Reference> reference_elsewhere_;
};

}  // namespace forebay::worker
