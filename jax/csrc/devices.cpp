// The client, its devices and their memories.
#include "objects.h"

namespace forebay::pjrt {
namespace {

const std::string kPlatform = "cuda";  // as JAX calls it, and shows it as gpu
const std::string kPlatformVersion = "forebay";

const NamedValue* find_option(const ClientCreate& arguments, const std::string& name) {
  for (size_t index = 0; index < arguments.option_count; ++index) {
    const auto& option = arguments.options[index];
    if (name == std::string(option.name, option.name_size)) return &option;
  }
  return nullptr;
}

// Of a session that has so many.
std::unique_ptr<Device> new_device(Client* client, int id, const std::string& kind, int session, int64_t place, int64_t places) {
  auto device = std::make_unique<Device>();
  device->client = client;
  device->session = session;
  device->place = static_cast<uint64_t>(place);
  device->places = places;
  const auto number = std::to_string(id);
  device->description = {id, kind, "cuda:" + number, "CudaDevice(id=" + number + ")"};
  device->memory.device = device.get();
  device->memory.name = "the memory of cuda:" + number;
  device->memories[0] = &device->memory;
  return device;
}

void add_session(Client* client, int session, const std::string& kind, int64_t places) {
  for (int64_t place = 0; place < places; ++place) {
    client->owned.push_back(new_device(client, static_cast<int>(client->owned.size()), kind, session, place, places));
    auto* device = client->owned.back().get();
    client->devices.push_back(device);
    client->memories.push_back(&device->memory);
    client->topology.descriptions.push_back(&device->description);
  }
}

// The options are the address of the table; and of each session what kind of device it has, and how many.
void create_client(ClientCreate& arguments) {
  const auto* address = find_option(arguments, "table");
  if (address == nullptr || address->type != ValueType::kInt64) throw Refusal{Code::kInvalidArgument, "the plug-in of the virtual device is loaded by forebay_jax alone"};
  const auto* table = reinterpret_cast<const DeviceTable*>(static_cast<intptr_t>(address->integer));
  if (table->version != kDeviceTableVersion) throw Refusal{Code::kFailedPrecondition, "forebay and forebay-jax are of different releases; install the same one of both"};
  auto client = std::make_unique<Client>();
  client->table = table;
  for (int session = 0; session < table->devices(); ++session) {
    const auto* kind = find_option(arguments, "kind_" + std::to_string(session));
    const auto* places = find_option(arguments, "places_" + std::to_string(session));
    add_session(client.get(), session, kind == nullptr ? "virtual device" : std::string(kind->string, kind->size), places == nullptr ? 1 : places->integer);
  }
  arguments.client = client.release();
}
void destroy_client(ClientOf& arguments) { delete arguments.client; }

// Devices

void initialize(Arguments&) {}
void tell_no_attributes(Attributes& arguments) {
  arguments.attributes = nullptr;
  arguments.count = 0;
}
void tell_platform(Property<Client, Text>& arguments) { arguments.value = text_of(kPlatform); }
void tell_version(Property<Client, Text>& arguments) { arguments.value = text_of(kPlatformVersion); }
void tell_process(Property<Client, int>& arguments) { arguments.value = 0; }
void tell_topology(Property<Client, Topology*>& arguments) { arguments.value = &arguments.owner->topology; }
void tell_devices(Property<Client, List<Device>>& arguments) { arguments.value = {arguments.owner->devices.data(), arguments.owner->devices.size()}; }
void tell_memories(Property<Client, List<Memory>>& arguments) { arguments.value = {arguments.owner->memories.data(), arguments.owner->memories.size()}; }
void find_device(ClientLookup& arguments) {
  const auto& devices = arguments.client->devices;
  if (arguments.id < 0 || static_cast<size_t>(arguments.id) >= devices.size()) throw Refusal{Code::kInvalidArgument, "there is no device cuda:" + std::to_string(arguments.id)};
  arguments.device = devices[static_cast<size_t>(arguments.id)];
}
void assign(DefaultAssignment& arguments) {
  const auto count = static_cast<size_t>(arguments.replicas) * static_cast<size_t>(arguments.partitions);
  if (count > arguments.count || count > arguments.client->devices.size()) throw Refusal{Code::kInvalidArgument, "there are fewer devices than the program is for"};
  for (size_t index = 0; index < count; ++index) arguments.assignment[index] = static_cast<int>(index);
}

void tell_id(Property<DeviceDescription, int>& arguments) { arguments.value = arguments.owner->id; }
void tell_process_of(Property<DeviceDescription, int>& arguments) { arguments.value = 0; }
void tell_kind(Property<DeviceDescription, Text>& arguments) { arguments.value = text_of(arguments.owner->kind); }
void tell_name(Property<DeviceDescription, Text>& arguments) { arguments.value = text_of(arguments.owner->name); }
void tell_shown(Property<DeviceDescription, Text>& arguments) { arguments.value = text_of(arguments.owner->shown); }
void tell_no_device_attributes(DeviceAttributes& arguments) {
  arguments.attributes = nullptr;
  arguments.count = 0;
}
void describe(Property<Device, DeviceDescription*>& arguments) { arguments.value = &arguments.owner->description; }
void tell_addressable(Property<Device, bool>& arguments) { arguments.value = true; }
void tell_hardware_id(Property<Device, int>& arguments) { arguments.value = arguments.owner->description.id; }
void tell_memories_of(Property<Device, List<Memory>>& arguments) { arguments.value = {arguments.owner->memories, 1}; }
void tell_default_memory(Property<Device, Memory*>& arguments) { arguments.value = &arguments.owner->memory; }
void tell_statistics(MemoryStatistics& arguments) {
  const auto memory = arguments.device->use();
  arguments.bytes_in_use = memory.used;
  arguments.peak_bytes_in_use = {memory.peak, arguments.device->places == 1};
  arguments.allocations = {memory.allocations, arguments.device->places == 1};
  arguments.bytes_limit = {memory.limit, memory.limit > 0};
  for (auto* unknown : {&arguments.largest_allocation, &arguments.bytes_reserved, &arguments.peak_bytes_reserved, &arguments.bytes_reservable, &arguments.largest_free_block,
                        &arguments.pool_bytes, &arguments.peak_pool_bytes}) {
    *unknown = {0, false};
  }
}

void tell_memory_id(Property<Memory, int>& arguments) { arguments.value = arguments.owner->device->description.id; }
void tell_memory_kind(Property<Memory, Text>& arguments) { arguments.value = text_of(arguments.owner->kind); }
void tell_memory_kind_id(Property<Memory, int>& arguments) { arguments.value = 0; }
void tell_memory_name(Property<Memory, Text>& arguments) { arguments.value = text_of(arguments.owner->name); }
void tell_device_of(Property<Memory, List<Device>>& arguments) { arguments.value = {&arguments.owner->device, 1}; }

void tell_topology_platform(Property<const Topology, Text>& arguments) { arguments.value = text_of(kPlatform); }
void tell_topology_version(Property<const Topology, Text>& arguments) { arguments.value = text_of(kPlatformVersion); }
void tell_descriptions(Property<const Topology, List<DeviceDescription>>& arguments) {
  arguments.value = {arguments.owner->descriptions.data(), arguments.owner->descriptions.size()};
}
void tell_topology_attributes(Property<Topology, NamedValues>& arguments) { arguments.value = {nullptr, 0}; }

}  // namespace

DeviceMemory Device::use() const {
  DeviceMemory memory{};
  client->table->memory(session, &memory);
  if (places == 1) return memory;
  return {held_bytes->load(), 0, memory.limit / places, 0};
}

void Device::check_room(int64_t bytes) const {
  if (places == 1) return;  // the session says so itself
  const auto memory = use();
  if (memory.limit == 0 || bytes <= memory.limit - memory.used) return;
  throw Refusal{Code::kResourceExhausted, description.name + " is out of memory: " + std::to_string(bytes) + " bytes are asked for, and " + std::to_string(memory.used) + " of " +
                                              std::to_string(memory.limit) + " are in use, a part of what the session's " + std::to_string(places) + " devices have"};
}

void enter_devices(Functions& functions) {
  PJRT_SET(functions, Plugin_Initialize, initialize);
  PJRT_SET(functions, Plugin_Attributes, tell_no_attributes);
  PJRT_SET(functions, Client_Create, create_client);
  PJRT_SET(functions, Client_Destroy, destroy_client);
  PJRT_SET(functions, Client_PlatformName, tell_platform);
  PJRT_SET(functions, Client_PlatformVersion, tell_version);
  PJRT_SET(functions, Client_ProcessIndex, tell_process);
  PJRT_SET(functions, Client_TopologyDescription, tell_topology);
  PJRT_SET(functions, Client_Devices, tell_devices);
  PJRT_SET(functions, Client_AddressableDevices, tell_devices);
  PJRT_SET(functions, Client_AddressableMemories, tell_memories);
  PJRT_SET(functions, Client_LookupDevice, find_device);
  PJRT_SET(functions, Client_LookupAddressableDevice, find_device);
  PJRT_SET(functions, Client_DefaultDeviceAssignment, assign);
  PJRT_SET(functions, DeviceDescription_Id, tell_id);
  PJRT_SET(functions, DeviceDescription_ProcessIndex, tell_process_of);
  PJRT_SET(functions, DeviceDescription_Kind, tell_kind);
  PJRT_SET(functions, DeviceDescription_DebugString, tell_name);
  PJRT_SET(functions, DeviceDescription_ToString, tell_shown);
  PJRT_SET(functions, DeviceDescription_Attributes, tell_no_device_attributes);
  PJRT_SET(functions, Device_GetDescription, describe);
  PJRT_SET(functions, Device_IsAddressable, tell_addressable);
  PJRT_SET(functions, Device_LocalHardwareId, tell_hardware_id);
  PJRT_SET(functions, Device_AddressableMemories, tell_memories_of);
  PJRT_SET(functions, Device_DefaultMemory, tell_default_memory);
  PJRT_SET(functions, Device_MemoryStats, tell_statistics);
  PJRT_SET(functions, Memory_Id, tell_memory_id);
  PJRT_SET(functions, Memory_Kind, tell_memory_kind);
  PJRT_SET(functions, Memory_Kind_Id, tell_memory_kind_id);
  PJRT_SET(functions, Memory_DebugString, tell_memory_name);
  PJRT_SET(functions, Memory_ToString, tell_memory_name);
  PJRT_SET(functions, Memory_AddressableByDevices, tell_device_of);
  PJRT_SET(functions, TopologyDescription_PlatformName, tell_topology_platform);
  PJRT_SET(functions, TopologyDescription_PlatformVersion, tell_topology_version);
  PJRT_SET(functions, TopologyDescription_GetDeviceDescriptions, tell_descriptions);
  PJRT_SET(functions, TopologyDescription_Attributes, tell_topology_attributes);
}

}  // namespace forebay::pjrt
