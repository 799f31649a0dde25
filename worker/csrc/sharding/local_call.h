// The call that each device of a gang carries out as its part of one: its template in the making, and where it finds its part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>
#include <forebay/wire.h>

#include "sharding/way.h"

namespace forebay::worker {

int64_t item_bytes_of(const wire::Geometry& geometry);

class LocalCall {
 public:
  // `call`: of the whole.
  explicit LocalCall(const wire::Template& call);
  LocalCall(const LocalCall&) = delete;  // pointers lead into it
  LocalCall& operator=(const LocalCall&) = delete;

  // The tensor arguments, and the results with those in lists, in order.
  const std::vector<wire::Argument*>& tensors() const { return tensors_; }
  const std::vector<wire::Output*>& outputs() const { return outputs_; }

  // Has a tensor argument be what a device holds of a view in rows of such a period; `local`: that.
  void take_rows(size_t tensor, int64_t period, const LocalView& local);
  // Has it be a part of a copy.
  void take_part(size_t tensor, size_t dimension, int64_t devices);
  // Has a new result be in rows, so many of the dimension in a period; false where it cannot be.
  bool make_rows(wire::Output& output, size_t dimension, int64_t rows, int64_t devices);
  // Has a new result be so; `bytes` as the call makes it.
  void make(const wire::Output& output, const Placement& placement) { way.made.push_back({placement, output.storage_bytes}); }

  wire::Template local;
  Way way;

 private:
  std::vector<wire::Argument*> tensors_;
  std::vector<wire::Output*> outputs_;
};

// Whether the elements fill their storage.
bool is_gapless(const wire::Output& output);

}  // namespace forebay::worker
