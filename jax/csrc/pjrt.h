// The part of the PJRT C API that this plug-in serves: JAX's interface to devices (https://openxla.org/xla/pjrt), version 0.90.
//
// Declared here from its documentation, since no package carries the header. The API only ever grows: functions behind the last one, and members behind
// a structure's last one. A caller says by `bytes` how many of a structure's it knows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::pjrt {

constexpr int kMajor = 0;
constexpr int kMinor = 90;

// All functions, in the order of their places.
#define PJRT_FUNCTIONS(X) \
  X(Error_Destroy) X(Error_Message) X(Error_GetCode) X(Plugin_Initialize) X(Plugin_Attributes) X(Event_Destroy) X(Event_IsReady) \
  X(Event_Error) X(Event_Await) X(Event_OnReady) X(Client_Create) X(Client_Destroy) X(Client_PlatformName) X(Client_ProcessIndex) \
  X(Client_PlatformVersion) X(Client_Devices) X(Client_AddressableDevices) X(Client_LookupDevice) X(Client_LookupAddressableDevice) \
  X(Client_AddressableMemories) X(Client_Compile) X(Client_DefaultDeviceAssignment) X(Client_BufferFromHostBuffer) \
  X(DeviceDescription_Id) X(DeviceDescription_ProcessIndex) X(DeviceDescription_Attributes) X(DeviceDescription_Kind) \
  X(DeviceDescription_DebugString) X(DeviceDescription_ToString) X(Device_GetDescription) X(Device_IsAddressable) \
  X(Device_LocalHardwareId) X(Device_AddressableMemories) X(Device_DefaultMemory) X(Device_MemoryStats) X(Memory_Id) X(Memory_Kind) \
  X(Memory_DebugString) X(Memory_ToString) X(Memory_AddressableByDevices) X(Executable_Destroy) X(Executable_Name) \
  X(Executable_NumReplicas) X(Executable_NumPartitions) X(Executable_NumOutputs) X(Executable_SizeOfGeneratedCodeInBytes) \
  X(Executable_GetCostAnalysis) X(Executable_OutputMemoryKinds) X(Executable_OptimizedProgram) X(Executable_Serialize) \
  X(LoadedExecutable_Destroy) X(LoadedExecutable_GetExecutable) X(LoadedExecutable_AddressableDevices) X(LoadedExecutable_Delete) \
  X(LoadedExecutable_IsDeleted) X(LoadedExecutable_Execute) X(Executable_DeserializeAndLoad) X(LoadedExecutable_Fingerprint) \
  X(Buffer_Destroy) X(Buffer_ElementType) X(Buffer_Dimensions) X(Buffer_UnpaddedDimensions) X(Buffer_DynamicDimensionIndices) \
  X(Buffer_GetMemoryLayout) X(Buffer_OnDeviceSizeInBytes) X(Buffer_Device) X(Buffer_Memory) X(Buffer_Delete) X(Buffer_IsDeleted) \
  X(Buffer_CopyToDevice) X(Buffer_ToHostBuffer) X(Buffer_IsOnCpu) X(Buffer_ReadyEvent) X(Buffer_UnsafePointer) \
  X(Buffer_IncreaseExternalReferenceCount) X(Buffer_DecreaseExternalReferenceCount) X(Buffer_OpaqueDeviceMemoryDataPointer) \
  X(CopyToDeviceStream_Destroy) X(CopyToDeviceStream_AddChunk) X(CopyToDeviceStream_TotalBytes) X(CopyToDeviceStream_GranuleSize) \
  X(CopyToDeviceStream_CurrentBytes) X(TopologyDescription_Create) X(TopologyDescription_Destroy) X(TopologyDescription_PlatformName) \
  X(TopologyDescription_PlatformVersion) X(TopologyDescription_GetDeviceDescriptions) X(TopologyDescription_Serialize) \
  X(TopologyDescription_Attributes) X(Compile) X(Executable_OutputElementTypes) X(Executable_OutputDimensions) X(Buffer_CopyToMemory) \
  X(Client_CreateViewOfDeviceBuffer) X(Executable_Fingerprint) X(Client_TopologyDescription) X(Executable_GetCompiledMemoryStats) \
  X(Memory_Kind_Id) X(ExecuteContext_Create) X(ExecuteContext_Destroy) X(Buffer_CopyRawToHost) \
  X(AsyncHostToDeviceTransferManager_Destroy) X(AsyncHostToDeviceTransferManager_TransferData) \
  X(Client_CreateBuffersForAsyncHostToDevice) X(AsyncHostToDeviceTransferManager_RetrieveBuffer) \
  X(AsyncHostToDeviceTransferManager_Device) X(AsyncHostToDeviceTransferManager_BufferCount) \
  X(AsyncHostToDeviceTransferManager_BufferSize) X(AsyncHostToDeviceTransferManager_SetBufferError) \
  X(AsyncHostToDeviceTransferManager_AddMetadata) X(Client_DmaMap) X(Client_DmaUnmap) X(Client_CreateUninitializedBuffer) \
  X(Client_UpdateGlobalProcessInfo) X(TopologyDescription_Deserialize) X(Client_CreateAliasBuffer) X(Client_FulfillAliasBuffer) \
  X(LoadedExecutable_GetDeviceAssignment) X(Client_CreateErrorBuffer) X(AsyncHostToDeviceTransferManager_TransferLiteral) \
  X(Buffer_CopyRawToHostFuture) X(Device_PoisonExecution) X(Device_CreateAsyncTrackingEvent) X(AsyncTrackingEvent_Destroy) \
  X(Executable_GetCompileOptions) X(Buffer_DonateWithControlDependency) X(Event_Create) X(Event_Set)

enum class Function : size_t {
#define X(name) k##name,
  PJRT_FUNCTIONS(X)
#undef X
};

constexpr const char* kFunctionNames[] = {
#define X(name) #name,
    PJRT_FUNCTIONS(X)
#undef X
};
constexpr size_t kFunctions = sizeof(kFunctionNames) / sizeof(kFunctionNames[0]);

// What the plug-in has of its own.
struct Error;
struct Event;
struct Client;
struct Device;
struct DeviceDescription;
struct Memory;
struct Buffer;
struct Executable;
struct LoadedExecutable;
struct Topology;
struct ExecuteContext;

// Before all others' members. Derived structures lie as if these were their first members.
struct Arguments {
  size_t bytes;
  void* extensions;
};

struct Version : Arguments {
  int major;
  int minor;
};

// What the library's one function gives.
struct Api {
  size_t bytes;
  void* extensions;
  Version version;
  void* functions[kFunctions];
};

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

// The numbers of types are those of wire::ElementType.
using Type = int;

enum class ValueType : int { kString = 0, kInt64 = 1, kInt64List = 2, kFloat = 3, kBool = 4 };

struct NamedValue : Arguments {
  const char* name;
  size_t name_size;
  ValueType type;
  union {
    const char* string;
    int64_t integer;
    const int64_t* integers;
    float number;
    bool flag;
  };
  size_t size;
};

enum class LayoutKind : int { kTiled = 0, kStrides = 1 };

struct TiledLayout : Arguments {
  const int64_t* minor_to_major;
  size_t minor_to_major_size;
  const int64_t* tile_dims;
  const size_t* tile_dim_sizes;
  size_t tiles;
};

struct StridedLayout : Arguments {
  const int64_t* byte_strides;
  size_t count;
};

struct Layout : Arguments {
  union {
    TiledLayout tiled;
    StridedLayout strides;
  };
  LayoutKind kind;
};

struct Text {
  const char* letters;
  size_t size;
};

// Errors, events

struct ErrorOf : Arguments {
  Error* error;
};
struct ErrorMessage : Arguments {
  const Error* error;
  Text message;
};
struct ErrorCode : Arguments {
  const Error* error;
  Code code;
};
struct EventOf : Arguments {
  Event* event;
};
struct EventReady : Arguments {
  Event* event;
  bool is_ready;
};
struct EventOnReady : Arguments {
  Event* event;
  void (*callback)(Error* error, void* context);
  void* context;
};

// The plug-in, its client, devices, memories

struct Attributes : Arguments {
  const NamedValue* attributes;
  size_t count;
};
struct ClientCreate : Arguments {
  const NamedValue* options;
  size_t option_count;
  void* get;
  void* get_context;
  void* put;
  void* put_context;
  Client* client;
  void* try_get;
  void* try_get_context;
};
struct ClientOf : Arguments {
  Client* client;
};
template <typename Owner, typename Value>
struct Property : Arguments {  // of one thing
  Owner* owner;
  Value value;
};
struct NamedValues {
  const NamedValue* values;
  size_t count;
};
template <typename Item>
struct List {
  Item* const* items;
  size_t count;
};
struct ClientLookup : Arguments {
  Client* client;
  int id;
  Device* device;
};
struct DefaultAssignment : Arguments {
  Client* client;
  int replicas;
  int partitions;
  size_t count;
  int* assignment;
};
struct DeviceAttributes : Arguments {
  DeviceDescription* device;
  size_t count;
  const NamedValue* attributes;
};
struct MemoryStatistic {
  int64_t value;
  bool is_set;
};
struct MemoryStatistics : Arguments {
  Device* device;
  int64_t bytes_in_use;
  MemoryStatistic peak_bytes_in_use;
  MemoryStatistic allocations;
  MemoryStatistic largest_allocation;
  MemoryStatistic bytes_limit;
  MemoryStatistic bytes_reserved;
  MemoryStatistic peak_bytes_reserved;
  MemoryStatistic bytes_reservable;
  MemoryStatistic largest_free_block;
  MemoryStatistic pool_bytes;
  MemoryStatistic peak_pool_bytes;
};

// Programs

struct Program : Arguments {
  char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};
struct Compile : Arguments {
  Client* client;
  const Program* program;
  const char* options;
  size_t options_size;
  LoadedExecutable* executable;
};
struct CostAnalysis : Arguments {
  Executable* executable;
  size_t count;
  const NamedValue* properties;
};
struct OutputTypes : Arguments {
  Executable* executable;
  Type* types;
  size_t count;
};
struct OutputDimensions : Arguments {
  Executable* executable;
  size_t count;
  const int64_t* sizes;  // of all outputs
  const size_t* dims;    // of each
};
struct OutputMemoryKinds : Arguments {
  Executable* executable;
  size_t count;
  const char* const* kinds;
  const size_t* kind_sizes;
};
struct CompiledMemory : Arguments {
  Executable* executable;
  int64_t generated_code_bytes;
  int64_t argument_bytes;
  int64_t output_bytes;
  int64_t alias_bytes;
  int64_t temporary_bytes;
  int64_t host_bytes[5];  // the same, of the host
  int64_t peak_bytes;
  int64_t total_bytes;
};
struct SerializedAssignment;
struct DeviceAssignment : Arguments {
  LoadedExecutable* executable;
  Text serialized;  // a DeviceAssignmentProto
  SerializedAssignment* assignment;
  void (*destroy)(SerializedAssignment* assignment);
};
struct OptimizedProgram : Arguments {
  Executable* executable;
  Program* program;
};
struct ExecuteOptions : Arguments {
  void** send_callbacks;
  void** receive_callbacks;
  size_t sends;
  size_t receives;
  int launch;
  const int64_t* kept_inputs;  // although the program gives them up
  size_t kept_input_count;
  ExecuteContext* context;
};
struct Execute : Arguments {
  LoadedExecutable* executable;
  ExecuteOptions* options;
  Buffer* const* const* inputs;  // by device
  size_t devices;
  size_t input_count;
  Buffer** const* outputs;
  Event** done;  // null, or one for each device
  Device* device;
};

// Buffers

struct FromHost : Arguments {
  Client* client;
  const void* data;
  Type type;
  const int64_t* sizes;
  size_t dims;
  const int64_t* byte_strides;
  size_t stride_count;
  int semantics;
  Device* device;
  Memory* memory;
  Layout* layout;
  Event* done_with_host_buffer;
  Buffer* buffer;
};
struct Uninitialized : Arguments {
  Client* client;
  const int64_t* sizes;
  size_t dims;
  Type type;
  Layout* layout;
  Device* device;
  Memory* memory;
  Buffer* buffer;
};
struct ToHost : Arguments {
  Buffer* source;
  Layout* layout;
  void* target;  // null: how many bytes it takes is asked
  size_t target_size;
  Event* event;
};
struct RawToHost : Arguments {
  Buffer* buffer;
  void* target;
  int64_t offset;
  int64_t bytes;
  Event* event;
};
template <typename Place>
struct CopyTo : Arguments {
  Buffer* buffer;
  Place* place;
  Buffer* copy;
};
struct Dimensions {
  const int64_t* sizes;
  size_t dims;
};
struct DynamicDimensions {
  const size_t* indices;
  size_t count;
};
struct ContextCreate : Arguments {
  ExecuteContext* context;
};
struct ContextOf : Arguments {
  ExecuteContext* context;
};

}  // namespace forebay::pjrt
