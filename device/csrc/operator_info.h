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
  bool moves_indices;        // takes index tensors from the host, as CUDA's kernels do
  bool views;                // returns a view of an argument: never recorded as it is
  bool supported;
  bool normalizes;            // returns statistics beside what it normalised
  std::optional<int> trains;  // of batch norms: the argument that says whether it is training

  // The wire's number of this operator, and the numbering it belongs to; guarded by the recorder's lock.
  uint64_t number = 0;
  uint64_t numbering = 0;
};

}  // namespace forebay
