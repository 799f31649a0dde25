// Messages that JAX reads, in the wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace forebay::pjrt {

// A DeviceAssignmentProto (xla/xla_data.proto). `devices`: of each replica its partitions', one replica after the other.
std::string device_assignment(uint64_t replicas, uint64_t partitions, const std::vector<int>& devices);

// A HloModuleProtoWithConfig (xla/service/hlo.proto) of a HloModuleProto; empty where that is.
std::string with_config(const std::string& module);

}  // namespace forebay::pjrt
