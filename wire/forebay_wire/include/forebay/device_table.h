// What the virtual devices do for other frameworks than PyTorch in the same process: functions that `forebay._C` hands out in a capsule.
//
// A framework's plug-in is another library, made by another compiler maybe: so only plain types cross. Any thread may call, with the interpreter's
// lock or without. A call that waits gives the lock up, and looks at signals.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay {

constexpr uint32_t kDeviceTableVersion = 3;
constexpr const char* kDeviceTableName = "forebay.device_table";  // of the capsule

enum class Fault : int32_t { kNone = 0, kOutOfMemory = 1, kUnsupported = 2, kInvalid = 3, kInterrupted = 4, kFailed = 5 };

// How a call ended. Where it failed the message is the caller's to free().
struct Outcome {
  Fault fault;
  char* message;
};

// Bytes.
struct DeviceMemory {
  int64_t used;
  int64_t peak;
  int64_t limit;  // 0: no lease has told it
  int64_t allocations;
};

struct DeviceStorage;  // of a device's memory

// As recorder/programs.h has it. The number is drawn by new_program.
struct DeviceProgram {
  uint64_t number;
  const char* module;
  size_t bytes;
  const uint8_t* placement;  // as wire::put_placement writes it
  size_t placement_bytes;
  bool calls_back;  // as its signature says, once it is compiled
};

struct DeviceTable {
  uint32_t version;
  int32_t (*devices)();
  uint64_t (*new_program)();

  Outcome (*make)(int32_t device, int64_t bytes, DeviceStorage** storage);  // of zeros
  void (*drop)(DeviceStorage* storage);                                     // never waits
  // Returns when the data may be changed.
  Outcome (*write)(DeviceStorage* storage, const void* data, int64_t bytes);
  Outcome (*read)(DeviceStorage* storage, int64_t offset, void* data, int64_t bytes);
  // To a new storage, of that device or another.
  Outcome (*copy)(DeviceStorage* source, int64_t bytes, int32_t device, DeviceStorage** target);
  // All that was asked of the device before is done.
  Outcome (*await)(int32_t device);

  // `take` gets what the program takes and makes, as wire::put_signature writes it, unless the call fails.
  Outcome (*compile)(int32_t device, const DeviceProgram* program, void (*take)(void* context, const uint8_t* signature, size_t bytes), void* context);
  // Is not waited for, unless it calls back. Inputs and outputs are those of the program's devices, one device after the other.
  Outcome (*execute)(int32_t device, const DeviceProgram* program, DeviceStorage* const* inputs, size_t input_count, const int64_t* output_bytes, size_t output_count,
                     DeviceStorage** outputs);

  void (*memory)(int32_t device, DeviceMemory* memory);
};

}  // namespace forebay
