// Which dtypes a session's tensors may have.
#pragma once

#include <cstdint>

namespace forebay::worker {

// `dtype`: PyTorch's number of a c10::ScalarType.
bool is_supported(uint8_t dtype);

}  // namespace forebay::worker
