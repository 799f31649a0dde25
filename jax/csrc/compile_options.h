// What of JAX's options for the compiler says where a program runs: CompileOptionsProto (xla/pjrt/proto/compile_options.proto), in the wire format of
// protocol buffers (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay::pjrt {

struct CompileOptions {
  int64_t replicas = 1;
  int64_t partitions = 1;
  int device = 0;              // of the first replica
  bool has_overrides = false;  // the program's own flags of the compiler
};

// Throws Refusal for bytes that are none.
CompileOptions read_compile_options(std::string_view bytes);

}  // namespace forebay::pjrt
