// What the plug-in's handles are: devices, buffers, programs and events, over the table that forebay._C hands out.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/device_table.h"
#include "forebay/programs.h"
#include "pjrt.h"

namespace forebay::pjrt {

struct Error {
  Code code;
  std::string message;
};

// Thrown by functions of the plug-in, and returned by them as an Error.
struct Refusal {
  Code code;
  std::string message;
};

// Throws Refusal where the call failed.
void check(Outcome outcome);

// Text as long as its owner lives.
inline Text text_of(const std::string& text) { return {text.data(), text.size()}; }

struct DeviceDescription {
  int id;
  std::string kind;
  std::string name;   // as PyTorch calls it
  std::string shown;  // as JAX shows it in a list
};

struct Memory {
  Device* device;
  std::string kind = "device";
  std::string name;
};

struct Device {
  Client* client;
  DeviceDescription description;
  int session;     // the number of the session's virtual device in PyTorch
  uint64_t place;  // among the devices of that session
  int64_t places;  // how many those are
  Memory memory;
  Memory* memories[1];
  std::shared_ptr<std::atomic<int64_t>> held_bytes = std::make_shared<std::atomic<int64_t>>(0);  // by arrays

  DeviceMemory use() const;
  // Throws Refusal where the session has several devices, and this one's part of their memory has no room.
  void check_room(int64_t bytes) const;
};

struct Topology {
  std::vector<DeviceDescription*> descriptions;
};

struct Client {
  const DeviceTable* table;
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices;
  std::vector<Memory*> memories;
  Topology topology;
};

// Something that has happened, or that has once all is done that was asked of a device before.
struct Event {
  const DeviceTable* table = nullptr;  // null: it has happened
  int device = 0;
  std::unique_ptr<Error> error{};

  // Waits. The error, or null.
  const Error* await();
};

// A storage of a device; given back with its owner.
struct DropStorage {
  const DeviceTable* table = nullptr;
  std::shared_ptr<std::atomic<int64_t>> held_bytes{};
  int64_t bytes = 0;
  void operator()(DeviceStorage* storage) const {
    held_bytes->fetch_sub(bytes);
    table->drop(storage);
  }
};
using Storage = std::unique_ptr<DeviceStorage, DropStorage>;
Storage owned(DeviceStorage* storage, const Device& device, int64_t bytes);

// An array of a device: dense, the last dimension fastest.
struct Buffer {
  Device* device;
  wire::ProgramArray array;
  Storage storage;  // null: it is deleted
  std::vector<int64_t> minor_to_major;

  Buffer(Device* on, wire::ProgramArray what, Storage where);
  int64_t bytes() const { return *array.bytes(); }
  const DeviceTable& table() const { return *device->client->table; }
  // Throws Refusal where it is deleted.
  DeviceStorage* get() const;
};

// A program that a session's worker has compiled.
struct Compiled {
  std::vector<Device*> devices;  // of each replica its partitions', one replica after the other; of one session
  uint64_t replicas = 1;
  uint64_t partitions = 1;
  uint64_t number;
  std::string module;
  std::vector<uint8_t> placement;  // as wire::put_placement writes it
  std::string divided;             // the module as XLA compiled it (HloModuleProtoWithConfig), of several devices
  wire::ProgramSignature signature;
  std::vector<Type> output_types;
  std::vector<int64_t> output_sizes;  // of all outputs
  std::vector<size_t> output_dims;    // of each
  std::vector<int64_t> output_bytes;
  std::vector<const char*> memory_kinds;
  std::vector<size_t> memory_kind_sizes;

  int session() const { return devices.front()->session; }
  DeviceProgram program() const { return {number, module.data(), module.size(), placement.data(), placement.size(), signature.calls_back}; }
};

struct Executable {
  std::shared_ptr<const Compiled> compiled;
};

struct LoadedExecutable {
  std::shared_ptr<const Compiled> compiled;
  bool deleted = false;
};

struct ExecuteContext {};

// Where functions are entered in the library's table.
class Functions {
 public:
  explicit Functions(Api& api) : api_(api) {}

  // A function that throws Refusal.
  template <auto handler, typename Given>
  void set(Function function, void (*)(Given&)) {
    enter(function, reinterpret_cast<void*>(+[](Given* arguments) -> Error* {
            try {
              handler(*arguments);
              return nullptr;
            } catch (const Refusal& refusal) {
              return new Error{refusal.code, refusal.message};
            } catch (const std::exception& error) {
              return new Error{Code::kInternal, error.what()};
            }
          }));
  }
  void enter(Function function, void* address) { api_.functions[static_cast<size_t>(function)] = address; }

 private:
  Api& api_;
};

#define PJRT_SET(functions, name, handler) (functions).set<handler>(Function::k##name, handler)

void enter_events(Functions& functions);
void enter_devices(Functions& functions);
void enter_buffers(Functions& functions);
void enter_executables(Functions& functions);

}  // namespace forebay::pjrt
