#include "call/short_calls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <vector>

#include "call/operator_kinds.h"

namespace forebay::worker {

namespace {

constexpr double kShortS = 80e-6;  // about twice what it takes to wake a thread

// Of one thread of a usual processor.
constexpr double kNominalFlopsPerS = 110e9;
constexpr double kNominalBytesPerS = 10e9;
constexpr double kNominalFunctionsPerS = 500e6;
constexpr double kTapsOfConvolutions = 4;  // of a kernel, over the root of which its geometries say too little
constexpr double kListsOfItems = 3;        // that an operator of lists reads and writes; threads share one item at a time

// Other products.
constexpr std::array<std::string_view, 6> kMultiplying{"mv", "dot", "linear", "mkldnn", "matmul", "_scaled_dot_product"};
constexpr std::array<std::string_view, 2> kSlowConvolutions{"slow_conv", "_slow_conv"};
// Operators whose sizes say little of what they take.
constexpr std::array<std::string_view, 9> kUntold{"linalg", "_linalg", "cholesky", "geqrf", "orgqr", "ormqr", "triangular", "lu_", "recurrent"};
constexpr std::array<std::string_view, 2> kOfLists{"_foreach", "_fused"};

// Each number of two matrices, and of their product, takes part in as many multiplications as there are others along the side that it lacks: the
// root of the three sizes' product is how many there are.
double multiplications_of(std::vector<double> numels) {
  if (numels.size() < 3) return 0;
  std::partial_sort(numels.begin(), numels.begin() + 3, numels.end(), std::greater<>());
  return std::sqrt(numels[0] * numels[1] * numels[2]);
}

}  // namespace

bool is_short(const Plan& plan) {
  const auto name = base_name(plan);
  if (begins_with(name, kUntold)) return false;
  std::vector<LayoutRef> given;
  std::vector<const OutputPlan*> made;
  for (const auto& argument : plan.arguments) flatten(argument, given);
  flatten(plan.outputs, made);
  if (given.size() != plan.tensors) return false;  // parts of sparse tensors, whose sizes say little, are arguments, too
  std::vector<double> numels;
  double bytes = 0, largest = 0;
  const auto note = [&](const Layout& layout) {
    numels.push_back(static_cast<double>(layout.numel));
    bytes += static_cast<double>(layout.numel * layout.item_bytes);
    largest = std::max(largest, static_cast<double>(layout.numel * layout.item_bytes));
  };
  for (const auto& layout : given) {
    if (layout != nullptr) note(*layout);
  }
  for (const auto* output : made) note(*output->layout);
  for (const size_t index : plan.mutated) {
    if (given[index] != nullptr) bytes += static_cast<double>(given[index]->numel * given[index]->item_bytes);  // what is written is read, too
  }
  double seconds = (begins_with(name, kOfLists) ? kListsOfItems * largest : bytes) / kNominalBytesPerS;
  if (begins_with(name, kMatrixProducts) || begins_with(name, kMultiplying)) seconds = std::max(seconds, 2 * multiplications_of(numels) / kNominalFlopsPerS);
  if (begins_with(name, kConvolutions) || begins_with(name, kSlowConvolutions)) {
    seconds = std::max(seconds, 2 * kTapsOfConvolutions * multiplications_of(numels) / kNominalFlopsPerS);
  }
  if ((takes_function(name) || name.starts_with("max_pool")) && !numels.empty()) {
    seconds = std::max(seconds, *std::max_element(numels.begin(), numels.end()) / kNominalFunctionsPerS);
  }
  return seconds <= kShortS;
}

}  // namespace forebay::worker
