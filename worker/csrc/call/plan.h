// A template, resolved and checked once (planner.h), so that a call only fills in tensors and numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <forebay/operators.h>
#include <forebay/wire.h>

#include "device/device.h"
#include "device/storage.h"

namespace forebay::worker {

using LayoutRef = std::shared_ptr<const Layout>;

// One argument, or one item of a list argument.
struct ArgumentPlan {
  wire::Tag tag = wire::Tag::kNone;
  c10::IValue prototype;       // the whole value, where no call binds anything
  LayoutRef layout;            // kTensor; kSparse: sizes alone, as contracts see them
  c10::ScalarType dtype = c10::ScalarType::Float;  // kScalarTensor
  bool wrapped = false;        // kScalarTensor
  bool optional_items = false; // kTensorList: the operator wants Tensor?[]
  size_t count = 0;            // kDoubleList
  at::Tensor scalar;           // kScalarTensor: used again by the next call when nobody kept it
  std::vector<ArgumentPlan> items;
  c10::Layout sparse = c10::Layout::Strided;  // kSparse, whose parts are the items
  bool coalesced = false;      // kSparse, as the next
  std::vector<int64_t> sizes;
};

struct OutputPlan {
  wire::OutputTag tag = wire::OutputTag::kNone;
  LayoutRef layout;            // kNew
  int64_t storage_bytes = 0;   // kNew
  size_t same = 0;             // kSame
  std::vector<OutputPlan> items;
};

// An argument that is sparse, and the number of the first of its parts among the flattened tensor arguments.
struct SparseArgument {
  size_t argument;
  size_t first_tensor;
};

// A tensor of whole numbers that lead into another one.
struct Bound {
  enum class Kind {
    kOffsets,  // from 0 to below the end
    kAscending,  // as kOffsets, and none is below the one before
    kPivots,   // from 1 to below the end
    kBlocks,   // from 1 to below the end, or below 0 as far, two neighbours of a row at a time
    kLengths,  // not below 0, and below the end as sums over the last dimension
    kBags,     // fewer than the end of them lie below another number
    kClasses,  // as kOffsets, or another number
    kEitherEnd,  // as kOffsets, or below 0 as far, from the end
    kZero,     // no tensor's: a number that is 0
  };
  size_t argument;
  int64_t end;
  int64_t other = 0;  // kBags, kClasses
  Kind kind = Kind::kOffsets;
};

// Between which numbers those of a tensor must lie, for a kernel of an accelerator (ranges.h).
struct NumberRange {
  size_t argument;
  std::optional<size_t> item;  // of a list argument
  size_t tensor;               // among the flattened tensor arguments
  int64_t least;
  int64_t most;
  std::optional<int64_t> except;  // may be there, too
};

// Between which numbers those lie that an operator makes, whatever it is given.
struct MadeNumbers {
  size_t output;
  bool counts;    // from an argument to another one, which each call binds; else:
  Interval interval;
};

// How a kernel may fail in the middle of what it writes: never, where an index leads out of its dimension, where one of a list does, where one leads out
// of the whole tensor, or by any value.
enum class PartialWrites { kNone, kByIndex, kByIndices, kByPlace, kByValue };

struct Plan {
  explicit Plan(c10::OperatorHandle handle) : op(handle) {}

  c10::OperatorHandle op;
  bool random = false;
  c10::ScalarType default_dtype = c10::ScalarType::Float;  // PyTorch's, as the program had it
  bool tells = false;             // some output is told by the worker: only ASK may use it
  std::vector<ArgumentPlan> arguments;
  std::vector<OutputPlan> outputs;
  std::vector<size_t> mutated;    // which of the flattened tensor arguments the operator writes to
  size_t tensors = 0;             // flattened tensor arguments
  std::vector<wire::Word> words;  // what a call binds, in order
  size_t new_storages = 0;
  int64_t new_bytes = 0;          // of all new storages
  int64_t given_bytes = 0;        // of all tensor arguments, as far as they reach
  size_t items = 0;               // arguments and outputs with their lists' items
  std::string breach;             // of the operator's contract: a call fails
  std::vector<size_t> apart;      // arguments that its contract wants with their elements together: a call gives the kernel copies
  std::vector<Bound> bounds;      // of its contract, to be looked at in each call
  PartialWrites partial_writes = PartialWrites::kNone;
  std::vector<NumberRange> ranges;  // to be looked at in each call
  std::optional<MadeNumbers> made;
  std::vector<SparseArgument> sparse;
  bool is_short = false;          // one thread of the host is to carry it out (short_calls.h)
  bool keeps_places = false;      // its kernel keeps what the derivative needs where autograd looks on alone
  uint64_t identity = 0;          // of the template, whatever its number
  std::string encoded;            // the template as it came, without the operator's number; where segments are compiled
};

// Of its operator: after the namespace, without the underscore of an overload in place.
inline std::string_view base_name(const Plan& plan) {
  auto name = wire::local_name(plan.op.schema().name());
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// Adds the argument's tensors, null for those without a storage.
void flatten(const ArgumentPlan& argument, std::vector<LayoutRef>& tensors);
// Adds the outputs that are new.
void flatten(const std::vector<OutputPlan>& outputs, std::vector<const OutputPlan*>& made);

// Geometries of all templates, each kept once.
class Layouts {
 public:
  LayoutRef intern(const wire::Geometry& geometry);
  void clear() { layouts_.clear(); }

 private:
  std::unordered_map<std::string, LayoutRef> layouts_;
  uint64_t last_id_ = 0;
};

}  // namespace forebay::worker
