#include "proto_messages.h"

#include <cstddef>

#include "proto_fields.h"

namespace forebay::pjrt {
namespace {

constexpr uint64_t kModule = 1, kConfig = 2;     // HloModuleProtoWithConfig
constexpr uint64_t kHostProgramShape = 4;        // HloModuleProto
constexpr uint64_t kEntryComputationLayout = 1;  // HloModuleConfigProto (xla/xla.proto)

}  // namespace

std::string device_assignment(uint64_t replicas, uint64_t partitions, const std::vector<int>& devices) {
  std::string message;
  put_number(message, 1, replicas);
  put_number(message, 2, partitions);
  for (size_t partition = 0; partition < partitions; ++partition) {
    std::string packed, computation;
    for (size_t replica = 0; replica < replicas; ++replica) put_varint(packed, static_cast<uint64_t>(devices[replica * partitions + partition]));
    put_bytes(computation, 1, packed);
    put_bytes(message, 3, computation);
  }
  return message;
}

std::string with_config(const std::string& module) {
  if (module.empty()) return {};
  std::string config, message;
  for_each_field(module, [&](const Field& field) {
    if (field.number == kHostProgramShape) put_bytes(config, kEntryComputationLayout, field.bytes);
  });
  put_bytes(message, kModule, module);
  put_bytes(message, kConfig, config);
  return message;
}

}  // namespace forebay::pjrt
