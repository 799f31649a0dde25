#include "tier2/library.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

namespace forebay::worker {

namespace {

// A library frees all that it needed at once. Given back to the system, that comes again page by page: of a transformer's step of 14 ms, 1 ms.
void keep_freed_memory() {
  constexpr int kMappedFrom = 32 << 20;  // bytes; the most that there is
  constexpr int kKept = 1 << 30;         // bytes; parking gives it all back
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, kKept);
}

// What is the same by its graph is computed once, and given as one tensor several times.
void make_apart(std::vector<at::Tensor>& results) {
  std::unordered_set<const void*> seen;
  for (auto& result : results) {
    if (result.defined() && result.storage().nbytes() > 0 && !seen.insert(result.storage().data()).second) result = result.clone();
  }
}

}  // namespace

Library::Library(const std::string& path) : name_(std::filesystem::path(path).stem()), runner_(std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(path, 1)) { keep_freed_memory(); }

Library::~Library() = default;

std::vector<at::Tensor> Library::run(const std::vector<at::Tensor>& inputs) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  auto results = runner_->run(inputs);
  make_apart(results);
  return results;
}

bool are_apart(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const auto& tensor : tensors) {
    const auto* begin = static_cast<const char*>(tensor.storage().data());
    if (tensor.storage().nbytes() > 0) ranges.emplace_back(begin, begin + tensor.storage().nbytes());
  }
  std::sort(ranges.begin(), ranges.end());
  return std::adjacent_find(ranges.begin(), ranges.end(), [](const auto& one, const auto& next) { return next.first < one.second; }) == ranges.end();
}

bool are_identical(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor first = one.contiguous(), second = other.contiguous();
  const size_t bytes = first.nbytes();
  return bytes == second.nbytes() && (bytes == 0 || std::memcmp(first.const_data_ptr(), second.const_data_ptr(), bytes) == 0);
}

}  // namespace forebay::worker
