#include "compile_options.h"

#include <functional>

#include "objects.h"

namespace forebay::pjrt {
namespace {

enum class Kind : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Numbers of fields.
constexpr uint64_t kBuildOptions = 3, kOverrides = 7;                    // CompileOptionsProto
constexpr uint64_t kReplicas = 4, kPartitions = 5, kAssignment = 9;      // ExecutableBuildOptionsProto
constexpr uint64_t kComputationDevices = 3, kReplicaDevices = 1;         // DeviceAssignmentProto, and a computation's devices

struct Field {
  uint64_t number;
  uint64_t value;          // of a varint
  std::string_view bytes;  // of a message, a string, or packed numbers
};

[[noreturn]] void refuse() { throw Refusal{Code::kInvalidArgument, "the options of the compiler cannot be read"}; }

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  refuse();
}

std::string_view take(std::string_view& bytes, uint64_t count) {
  if (count > bytes.size()) refuse();
  const auto taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

void for_each_field(std::string_view message, const std::function<void(const Field&)>& read) {
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    Field field{key >> 3, 0, {}};
    switch (static_cast<Kind>(key & 7)) {
      case Kind::kVarint:
        field.value = take_varint(message);
        break;
      case Kind::kFixed64:
        take(message, 8);
        break;
      case Kind::kBytes:
        field.bytes = take(message, take_varint(message));
        break;
      case Kind::kFixed32:
        take(message, 4);
        break;
      default:
        refuse();
    }
    read(field);
  }
}

void read_assignment(std::string_view message, CompileOptions& options) {
  for_each_field(message, [&](const Field& computation) {
    if (computation.number != kComputationDevices) return;
    for_each_field(computation.bytes, [&](const Field& replicas) {
      if (replicas.number != kReplicaDevices) return;
      auto packed = replicas.bytes;
      options.device = static_cast<int>(packed.empty() ? replicas.value : take_varint(packed));
    });
  });
}

}  // namespace

CompileOptions read_compile_options(std::string_view bytes) {
  CompileOptions options;
  for_each_field(bytes, [&](const Field& field) {
    options.has_overrides = options.has_overrides || field.number == kOverrides;
    if (field.number != kBuildOptions) return;
    for_each_field(field.bytes, [&](const Field& build) {
      if (build.number == kReplicas) options.replicas = static_cast<int64_t>(build.value);
      if (build.number == kPartitions) options.partitions = static_cast<int64_t>(build.value);
      if (build.number == kAssignment) read_assignment(build.bytes, options);
    });
  });
  return options;
}

}  // namespace forebay::pjrt
