// Layers of recurrent networks as one call (kOwnOperators of forebay/operators.h), by the fastest kernel that PyTorch has for them on the device.
#pragma once

#include <c10/core/Storage.h>

namespace forebay::worker {

// As often as one likes.
void define_recurrent_layers();
// Whether a layer has left something for its derivative beside the storage, which has no bytes of its own.
bool keeps_beside(const c10::Storage& storage);
// What this thread's layers have left so far is for nothing that comes from now on: a recording begins or ends.
void part_reserves();

}  // namespace forebay::worker
