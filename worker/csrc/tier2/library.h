// A shared library that AOTInductor made of a segment: a pure function of tensors, without Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace forebay::worker {

class Library {
 public:
  // Throws std::exception where the file cannot be loaded.
  explicit Library(const std::string& path);
  ~Library();
  // Of its file, without what says that it is one.
  const std::string& name() const { return name_; }
  // Results with memory of their own each. Throws std::exception where the library fails; nothing that was there has changed then.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

 private:
  std::string name_;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

// Whether no two of them share memory.
bool are_apart(const std::vector<at::Tensor>& tensors);
// Whether the elements of both are the same to the bit.
bool are_identical(const at::Tensor& one, const at::Tensor& other);

}  // namespace forebay::worker
