// A segment's steps carried out call by call, by PyTorch's own kernels (tier 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <forebay/traces.h>

#include "device/storage.h"

namespace forebay::worker {

// The steps of a segment, from its first one on.
using Path = std::vector<wire::Step*>;

// With which a step came last.
inline wire::Words words_of(const wire::Step& step) {
  wire::Words words;
  for (const auto& slot : step.slots) words.push_back(slot.last);
  return words;
}

// Carries out single steps.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual void run(uint64_t key, const wire::Words& words) = 0;
  // Waits for the device. A failure of the device stops the session.
  virtual void settle() = 0;
};

class Tier1 {
 public:
  Tier1(StepRunner& runner, Storages& storages) : runner_(runner), storages_(storages) {}

  // Frees the storages whose end was told before the step; those before the first step are freed already.
  void free_before(const Path& path, size_t index) {
    if (index == 0) return;
    for (const auto& slot : path[index]->freed) storages_.free(slot.last);
  }
  // Carries out these steps with the words that they came with last. What is freed before the first of them is freed already.
  void run(const Path& path, size_t begin, size_t end) {
    for (size_t index = begin; index < end; ++index) {
      if (index > begin) free_before(path, index);
      words_.clear();
      for (const auto& slot : path[index]->slots) words_.push_back(slot.last);
      runner_.run(path[index]->key, words_);
    }
  }
  void run(const Path& path) { run(path, 0, path.size()); }
  void settle() { runner_.settle(); }

 private:
  StepRunner& runner_;
  Storages& storages_;
  wire::Words words_;  // of the present step
};

}  // namespace forebay::worker
