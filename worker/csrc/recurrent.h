// Layers of recurrent networks as one call (kOwnOperators of forebay/operators.h), by the fastest kernel that PyTorch has for them on the device.
#pragma once

namespace forebay::worker {

// As often as one likes.
void define_recurrent_layers();

}  // namespace forebay::worker
