// What `out` arguments grew to. Kernels of PyTorch's make an empty one in each call (abs, logical_and, logsumexp …): what it will be is found once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/leaf_mutex.h"
#include "recorder/inference.h"

namespace forebay {

// By the key of a call's template; for several threads.
class Growths {
 public:
  void remember(const std::vector<uint64_t>& key, Growth growth);
  // Has the call's `out` arguments grow as those of a call of the same key did. False where that is not known, or does not hold.
  bool apply(const OperatorInfo& info, const torch::jit::Stack& stack, const std::vector<uint64_t>& key);
  void clear();

 private:
  LeafMutex mutex_;
  std::map<std::vector<uint64_t>, Growth> known_;
};

}  // namespace forebay
