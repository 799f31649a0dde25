// Operators on the stand-in: each is run on the host's kernels, later, by the thread of the current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "memory.h"

namespace standin {

// The bytes that a tensor spans, as a job uses them.
Range range_of(const at::Tensor& tensor, bool writes);
// The same tensor on the host, over the memory as jobs see it. Tensors of one storage share it, as the operator may look at that.
class Shadows {
 public:
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::map<const c10::StorageImpl*, c10::Storage> storages_;
};

// Gives a tensor other sizes, and its storage more bytes where they are needed.
void resize(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);
// A tensor over the same storage.
at::Tensor view_of(const at::Tensor& base, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

}  // namespace standin
