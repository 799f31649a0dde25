// Kinds of calls that a worker has carried out before. The first call of a kind waits for the worker, so that what an operator refuses for its
// arguments' types is raised at the call; kinds that are known cost nothing, in this process and in the next ones.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/leaf_mutex.h"
#include "base/operator_info.h"

namespace forebay {

// The operator, with its arguments' types, plain values and numbers of dimensions, which of their sizes are equal, and the default dtype. `worker` stands
// for the kind of device.
uint64_t kind_of(const OperatorInfo& info, const torch::jit::Stack& stack, at::ScalarType default_dtype, uint64_t worker);

// Whether the call writes to memory that another of its tensors, or another element of the same one, refers to as well: its kernel decides.
bool overlaps(const OperatorInfo& info, const torch::jit::Stack& stack);

class KnownCalls {
 public:
  static KnownCalls& get();

  // Learns from a file what earlier processes knew; `save` will add what this one learns. It need not exist.
  void open(const std::string& path);
  // Does nothing where the file cannot be written.
  void save();
  bool knows(uint64_t kind);
  void add(uint64_t kind);

 private:
  KnownCalls();
  void forked();

  LeafMutex mutex_;
  std::string path_;
  std::unordered_set<uint64_t> kinds_;
  std::vector<uint64_t> unsaved_;
};

}  // namespace forebay
