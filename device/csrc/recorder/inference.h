// What a call's results will look like, found on this side: the operator is run on meta tensors, which have no data.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/operator_info.h"

namespace forebay {

struct ResultGeometry {
  bool defined = true;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t storage_bytes = 0;
};

struct Result {
  int argument = -1;  // the argument it is, or -1
  bool list = false;
  std::optional<int64_t> number;  // a whole number instead of tensors
  std::vector<ResultGeometry> items;  // one, or the list's
};

struct Prediction {
  bool asks = false;  // only the worker can tell
  bool unsized_out = false;  // nobody here can tell what size an `out` would have
  bool read_out = false;     // an `out` that must grow is read from: its memory must not change before
  std::vector<Result> results;
  uint64_t new_storages = 0;
};

// What the tensors that a call writes to became of: none for those that kept their sizes.
struct Growth {
  std::vector<std::optional<ResultGeometry>> written;
};

// Throws what the operator throws for such arguments (shape errors). May resize the call's `out` arguments, as the operator
// would: then it says so in `growth` and returns nothing, and the call is to be looked at again.
std::optional<Prediction> infer(const OperatorInfo& info, const torch::jit::Stack& stack, bool worker_is_cpu, Growth& growth);

// Resizes the call's `out` arguments as another one's of the same key. False where `infer` must look at them itself.
bool grow(const OperatorInfo& info, const torch::jit::Stack& stack, const Growth& growth);

// Has the call read copies of what shares memory with what it writes to. False where it reads nothing such.
bool part_from_written(const OperatorInfo& info, torch::jit::Stack& stack);

// Throws what the operator throws for numbers that its distribution does not take: those may change from call to call.
void check_distribution(const OperatorInfo& info, const torch::jit::Stack& stack);

// Whether the worker is to be asked for what the operator gives.
bool only_worker_knows(const OperatorInfo& info);

// Has that be so of all operators of this name: what was found here has turned out wrong.
void ask_from_now_on(const std::string& name);

}  // namespace forebay
