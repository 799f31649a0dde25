// What of JAX's options for the compiler says where a program runs: CompileOptionsProto (xla/pjrt/proto/compile_options.proto), in the wire format of
// protocol buffers (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace forebay::pjrt {

struct CompileOptions {
  uint64_t replicas = 1;
  uint64_t partitions = 1;
  std::vector<int> devices;  // of each replica its partitions', one replica after the other; none: the first ones
  bool by_partitioner = false;
  bool by_shardy = false;
  bool has_automatic_partitioning = false;
  std::vector<uint8_t> free_inputs;  // as wire::ProgramPlacement has them
  std::vector<uint8_t> free_outputs;
  bool has_overrides = false;  // the program's own flags of the compiler
};

// Throws Refusal for bytes that are none.
CompileOptions read_compile_options(std::string_view bytes);

}  // namespace forebay::pjrt
