// The Python of this package, which knows the virtual devices of this process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace forebay::tf {

struct Front {
  int devices = 0;        // that TensorFlow shows
  int64_t table = 0;      // the address of forebay._C's functions (device_table.h)
  std::string plugin;     // the library behind the PJRT C API
};

// Asks forebay_tensorflow.front(). What it raises is the error.
absl::StatusOr<Front> ask_front();

}  // namespace forebay::tf
