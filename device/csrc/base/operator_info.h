// What the recorder needs of an operator's schema, worked out once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace forebay {

enum class Kind : uint8_t {
  kTensor,
  kTensorList,
  kInt,
  kDouble,
  kBool,
  kScalar,
  kIntList,
  kDoubleList,
  kBoolList,
  kString,
  kDevice,
  kGenerator,
  kScalarList,
  kUnsupported,
};

struct ArgumentInfo {
  Kind kind;
  bool written;  // the operator changes it in place
  bool out;      // it is given for the result alone
};

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name;      // "aten::add"
  std::string overload;  // "Tensor"
  uint64_t schema_hash;  // FNV-1a of the schema's text
  std::vector<ArgumentInfo> arguments;
  std::vector<int> returns;  // for each the argument that it is, or -1
  bool random;               // draws from the generator
  bool asks;                 // only running it tells its results' geometry or value
  bool scalars_shape;        // the values of its scalars decide its results' geometry
  bool takes_indices;        // takes index tensors from the host, as CUDA's kernels do
  bool fills_expanded;       // writes to an expanded tensor, with a warning
  bool views;                // returns a view of an argument: never recorded as it is
  bool supported;
  bool sparse = false;         // this is how it is called with sparse tensors
  bool writes_out;            // takes `out`
  bool writes;                // to a tensor that it is given
  bool normalizes;            // returns statistics beside what it normalised
  bool pointwise;             // as PyTorch tags it, but for comparisons in place
  bool heeds_settings;        // may be computed in another way where the program has set PyTorch so
  bool distribution;          // fills its tensor with draws, told by numbers alone
  std::optional<int> generator;
  std::optional<int> output_mask;  // of derivatives: the argument that says which results are wanted
  std::optional<int> trains;  // of batch norms: the argument that says whether it is training
};

}  // namespace forebay
