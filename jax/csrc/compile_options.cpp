#include "compile_options.h"

#include "proto_fields.h"

namespace forebay::pjrt {
namespace {

// Numbers of fields.
constexpr uint64_t kBuildOptions = 3, kOverrides = 7;                                  // CompileOptionsProto
constexpr uint64_t kReplicas = 4, kPartitions = 5, kAssignment = 9;                    // ExecutableBuildOptionsProto
constexpr uint64_t kBySpmd = 6, kByAutomaticSpmd = 7, kByShardy = 19;
constexpr uint64_t kFreeOutputs = 12, kFreeInputs = 18;
constexpr uint64_t kComputationDevices = 3, kReplicaDevices = 1;                       // DeviceAssignmentProto, and a computation's devices

// Of each partition its replicas' devices come, one partition after the other.
void read_assignment(std::string_view message, CompileOptions& options) {
  std::vector<std::vector<int>> partitions;
  for_each_field(message, [&](const Field& computation) {
    if (computation.number != kComputationDevices) return;
    auto& replicas = partitions.emplace_back();
    for_each_field(computation.bytes, [&](const Field& field) {
      if (field.number != kReplicaDevices) return;
      for (const uint64_t device : numbers_of(field)) replicas.push_back(static_cast<int>(device));
    });
    if (replicas.size() != partitions.front().size()) refuse_message();
  });
  options.devices.clear();
  for (size_t replica = 0; !partitions.empty() && replica < partitions.front().size(); ++replica) {
    for (const auto& devices : partitions) options.devices.push_back(devices[replica]);
  }
}

void append(const Field& field, std::vector<uint8_t>& flags) {
  for (const uint64_t flag : numbers_of(field)) flags.push_back(flag != 0);
}

void read_build_option(const Field& field, CompileOptions& options) {
  switch (field.number) {
    case kReplicas:
      options.replicas = field.value;
      break;
    case kPartitions:
      options.partitions = field.value;
      break;
    case kAssignment:
      read_assignment(field.bytes, options);
      break;
    case kBySpmd:
      options.by_partitioner = field.value != 0;
      break;
    case kByAutomaticSpmd:
      options.has_automatic_partitioning = field.value != 0;
      break;
    case kByShardy:
      options.by_shardy = field.value != 0;
      break;
    case kFreeOutputs:
      append(field, options.free_outputs);
      break;
    case kFreeInputs:
      append(field, options.free_inputs);
      break;
  }
}

}  // namespace

CompileOptions read_compile_options(std::string_view bytes) {
  CompileOptions options;
  for_each_field(bytes, [&](const Field& field) {
    options.has_overrides = options.has_overrides || field.number == kOverrides;
    if (field.number == kBuildOptions) for_each_field(field.bytes, [&](const Field& build) { read_build_option(build, options); });
  });
  return options;
}

}  // namespace forebay::pjrt
