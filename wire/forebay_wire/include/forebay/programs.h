// Programs that are compiled and carried out as a whole (docs/wire.md, Whole programs). As wire.h, this header knows bytes and limits only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/wire.h"

namespace forebay::wire {

constexpr size_t kProgramsMax = 16384;                   // of a session
constexpr size_t kProgramBytesMax = size_t{15} << 20;    // of one, as StableHLO
constexpr size_t kProgramArraysMax = 65536;              // that one takes, or makes, of all its devices
constexpr size_t kProgramDevicesMax = 256;               // that one runs on
constexpr size_t kCallbackBytesMax = size_t{15} << 20;   // of all arrays that a callback takes, or returns

// The type of an array's elements: the numbers of PJRT_Buffer_Type, of the PJRT C API. Types of less than a byte are not served.
enum class ElementType : uint8_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 13,
  kC64 = 14,
  kC128 = 15,
  kF8E5M2 = 16,
  kF8E4M3FN = 17,
  kF8E4M3B11FNUZ = 18,
  kF8E5M2FNUZ = 19,
  kF8E4M3FNUZ = 20,
  kF8E4M3 = 26,
  kF8E3M4 = 27,
  kF8E8M0FNU = 28,
};

// Bytes of an element; 0 of a type that is not served.
inline int64_t item_bytes(uint8_t type) {
  switch (static_cast<ElementType>(type)) {
    case ElementType::kS16:
    case ElementType::kU16:
    case ElementType::kF16:
    case ElementType::kBF16:
      return 2;
    case ElementType::kS32:
    case ElementType::kU32:
    case ElementType::kF32:
      return 4;
    case ElementType::kS64:
    case ElementType::kU64:
    case ElementType::kF64:
    case ElementType::kC64:
      return 8;
    case ElementType::kC128:
      return 16;
    case ElementType::kPred:
    case ElementType::kS8:
    case ElementType::kU8:
    case ElementType::kF8E5M2:
    case ElementType::kF8E4M3FN:
    case ElementType::kF8E4M3B11FNUZ:
    case ElementType::kF8E5M2FNUZ:
    case ElementType::kF8E4M3FNUZ:
    case ElementType::kF8E4M3:
    case ElementType::kF8E3M4:
    case ElementType::kF8E8M0FNU:
      return 1;
  }
  return 0;
}

// Dense, the last dimension fastest.
struct ProgramArray {
  uint8_t type = 0;
  std::vector<int64_t> sizes;

  // Nothing where the type is not served, or the array is larger than a storage may be.
  std::optional<int64_t> bytes() const {
    const int64_t item = item_bytes(type);
    const auto elements = elements_of(sizes);
    if (item == 0 || !elements || *elements > kStorageBytesMax / item) return std::nullopt;
    return *elements * item;
  }
};

// The devices of a session that a program runs on, and how XLA divides it among them.
struct ProgramPlacement {
  uint64_t replicas = 1;
  uint64_t partitions = 1;
  std::vector<uint64_t> devices{0};  // those of a replica's partitions, one replica after the other
  bool by_partitioner = false;       // of XLA: the program speaks of whole arrays
  bool by_shardy = false;            // which is another partitioner than XLA's first one
  // Whether that may choose how an array is divided: one for all arrays, or one for each.
  std::vector<uint8_t> free_inputs{0};
  std::vector<uint8_t> free_outputs{0};
};

// What a program takes and makes, on each of its devices.
struct ProgramSignature {
  std::string name;
  uint64_t devices = 1;
  std::vector<ProgramArray> inputs;
  std::vector<ProgramArray> outputs;
  std::vector<uint64_t> donated;  // inputs that the program's caller gives up
  uint64_t temporary_bytes = 0;   // of the device's memory, while it runs
  bool calls_back = false;        // functions of its client
  std::string compiled;           // of several devices: the module as XLA has divided and compiled it (HloModuleProto)
};

namespace detail {

inline void put_flags(Writer& out, const std::vector<uint8_t>& flags) {
  out.varint(flags.size());
  out.raw(flags.data(), flags.size());
}

inline std::vector<uint8_t> get_flags(Reader& in) {
  std::vector<uint8_t> flags(in.count(kProgramArraysMax, "the number of a program's arrays"));
  for (auto& flag : flags) flag = in.u8() != 0;
  return flags;
}

inline void put_arrays(Writer& out, const std::vector<ProgramArray>& arrays) {
  out.varint(arrays.size());
  for (const auto& array : arrays) {
    out.u8(array.type);
    out.varint(array.sizes.size());
    for (const int64_t size : array.sizes) out.varint(static_cast<uint64_t>(size));
  }
}

inline std::vector<ProgramArray> get_arrays(Reader& in) {
  std::vector<ProgramArray> arrays(in.count(kProgramArraysMax, "the number of a program's arrays"));
  for (auto& array : arrays) {
    array.type = in.u8();
    array.sizes.resize(in.count(kDimsMax, "the number of dimensions"));
    for (auto& size : array.sizes) size = static_cast<int64_t>(in.bounded(kStorageBytesMax, "a size"));
    if (!array.bytes()) throw WireError("a program's array of unknown type " + std::to_string(array.type) + ", or larger than a storage may be");
  }
  return arrays;
}

}  // namespace detail

inline void put_placement(Writer& out, const ProgramPlacement& placement) {
  out.varint(placement.replicas);
  out.varint(placement.partitions);
  for (const uint64_t device : placement.devices) out.varint(device);
  out.u8(placement.by_partitioner);
  out.u8(placement.by_shardy);
  detail::put_flags(out, placement.free_inputs);
  detail::put_flags(out, placement.free_outputs);
}

inline ProgramPlacement get_placement(Reader& in) {
  ProgramPlacement placement;
  placement.replicas = in.bounded(kProgramDevicesMax, "the number of a program's replicas");
  placement.partitions = in.bounded(kProgramDevicesMax, "the number of a program's partitions");
  const uint64_t devices = placement.replicas * placement.partitions;
  if (devices == 0 || devices > kProgramDevicesMax) throw WireError("a program for " + std::to_string(devices) + " devices");
  placement.devices.clear();
  for (uint64_t index = 0; index < devices; ++index) {
    placement.devices.push_back(in.bounded(kProgramDevicesMax - 1, "the number of a program's device"));
    if (std::count(placement.devices.begin(), placement.devices.end(), placement.devices.back()) > 1) throw WireError("a program has a device twice");
  }
  placement.by_partitioner = in.u8() != 0;
  placement.by_shardy = in.u8() != 0;
  placement.free_inputs = detail::get_flags(in);
  placement.free_outputs = detail::get_flags(in);
  return placement;
}

inline void put_signature(Writer& out, const ProgramSignature& signature) {
  out.string(signature.name);
  out.varint(signature.devices);
  detail::put_arrays(out, signature.inputs);
  detail::put_arrays(out, signature.outputs);
  out.varint(signature.donated.size());
  for (const uint64_t input : signature.donated) out.varint(input);
  out.varint(signature.temporary_bytes);
  out.u8(signature.calls_back);
  out.varint(signature.compiled.size());
  out.raw(signature.compiled.data(), signature.compiled.size());
}

inline ProgramSignature get_signature(Reader& in) {
  ProgramSignature signature;
  signature.name = in.string();
  signature.devices = in.bounded(kProgramDevicesMax, "the number of a program's devices");
  signature.inputs = detail::get_arrays(in);
  signature.outputs = detail::get_arrays(in);
  signature.donated.resize(in.count(signature.inputs.size(), "the number of inputs that are given up"));
  for (auto& input : signature.donated) {
    input = in.varint();
    if (input >= signature.inputs.size()) throw WireError("a program gives up an input that it does not take");
  }
  signature.temporary_bytes = in.bounded(kStorageBytesMax, "the bytes that a program needs while it runs");
  signature.calls_back = in.u8() != 0;
  const size_t bytes = in.count(kProgramBytesMax, "the size of a compiled program");
  signature.compiled.assign(reinterpret_cast<const char*>(in.raw(bytes)), bytes);
  return signature;
}

// What a callback takes, or returns: the elements of arrays.
using CallbackArrays = std::vector<std::string>;

inline void put_callback_arrays(Writer& out, const CallbackArrays& arrays) {
  out.varint(arrays.size());
  for (const auto& array : arrays) {
    out.varint(array.size());
    out.raw(array.data(), array.size());
  }
}

inline CallbackArrays get_callback_arrays(Reader& in) {
  CallbackArrays arrays(in.count(kProgramArraysMax, "the number of a callback's arrays"));
  for (auto& array : arrays) {
    const size_t bytes = in.count(kCallbackBytesMax, "the size of a callback's array");
    array.assign(reinterpret_cast<const char*>(in.raw(bytes)), bytes);
  }
  return arrays;
}

}  // namespace forebay::wire
