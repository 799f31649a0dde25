// Arrays of devices: made from the host's memory, read, copied, deleted.
#include <cstring>
#include <numeric>

#include "objects.h"

namespace forebay::pjrt {

Buffer::Buffer(Device* on, wire::ProgramArray what, Storage where) : device(on), array(std::move(what)), storage(std::move(where)) {
  for (auto dim = static_cast<int64_t>(array.sizes.size()); dim > 0; --dim) minor_to_major.push_back(dim - 1);
}

Storage owned(DeviceStorage* storage, const Device& device, int64_t bytes) {
  device.held_bytes->fetch_add(bytes);
  return Storage(storage, DropStorage{device.client->table, device.held_bytes, bytes});
}

DeviceStorage* Buffer::get() const {
  if (!storage) throw Refusal{Code::kInvalidArgument, "Array has been deleted."};
  return storage.get();
}

namespace {

wire::ProgramArray served(Type type, const int64_t* sizes, size_t dims) {
  wire::ProgramArray array{static_cast<uint8_t>(type), {sizes, sizes + dims}};
  if (type < 0 || type > UINT8_MAX || wire::item_bytes(array.type) == 0) throw Refusal{Code::kUnimplemented, "arrays of elements of less than a byte, and tokens, are not served on the virtual device"};
  if (!array.bytes()) throw Refusal{Code::kResourceExhausted, "the array is larger than one may be on the virtual device"};
  return array;
}

// Of dense elements, the last dimension fastest.
std::vector<int64_t> dense_strides(const wire::ProgramArray& array) {
  std::vector<int64_t> strides(array.sizes.size());
  int64_t stride = wire::item_bytes(array.type);
  for (size_t dim = strides.size(); dim > 0; --dim) {
    strides[dim - 1] = stride;
    stride *= array.sizes[dim - 1];
  }
  return strides;
}

// Whether elements lie so, wherever there are several.
bool is_dense(const wire::ProgramArray& array, const int64_t* strides) {
  const auto dense = dense_strides(array);
  for (size_t dim = 0; dim < dense.size(); ++dim) {
    if (array.sizes[dim] > 1 && strides[dim] != dense[dim]) return false;
  }
  return true;
}

// TensorFlow reads an array by other sizes than it was made with, dense too: it gives the same buffer another shape.
void check_layout(const wire::ProgramArray& array, const Layout* layout) {
  if (layout == nullptr) return;
  bool dense = true;
  if (layout->kind == LayoutKind::kStrides) {
    dense = array.sizes.size() < 2 || is_dense(array, layout->strides.byte_strides);
  } else if (const size_t dims = layout->tiled.minor_to_major_size; dims > 1) {
    dense = layout->tiled.tiles == 0;
    for (size_t place = 0; place < dims; ++place) dense = dense && layout->tiled.minor_to_major[place] == static_cast<int64_t>(dims - 1 - place);
  }
  if (!dense) throw Refusal{Code::kUnimplemented, "arrays in another layout than the dense one are not served on the virtual device"};
}

// Copies an array's elements behind each other.
void pack(const wire::ProgramArray& array, const int64_t* strides, size_t dim, const uint8_t* source, uint8_t*& target) {
  const auto item = static_cast<size_t>(wire::item_bytes(array.type));
  if (dim == array.sizes.size()) {
    std::memcpy(target, source, item);
    target += item;
    return;
  }
  for (int64_t index = 0; index < array.sizes[dim]; ++index) pack(array, strides, dim + 1, source + index * strides[dim], target);
}

Storage new_storage(Device* device, int64_t bytes) {
  DeviceStorage* storage = nullptr;
  device->check_room(bytes);
  check(device->client->table->make(device->session, bytes, &storage));
  return owned(storage, *device, bytes);
}

Device* place_of(Device* device, const Memory* memory) { return memory != nullptr ? memory->device : device; }

void make_from_host(FromHost& arguments) {
  const auto array = served(arguments.type, arguments.sizes, arguments.dims);
  check_layout(array, arguments.layout);
  auto* device = place_of(arguments.device, arguments.memory);
  const int64_t bytes = *array.bytes();
  auto buffer = std::make_unique<Buffer>(device, array, new_storage(device, bytes));
  std::vector<uint8_t> packed;
  const void* data = arguments.data;
  if (arguments.stride_count > 0 && bytes > 0 && !is_dense(array, arguments.byte_strides)) {
    packed.resize(static_cast<size_t>(bytes));
    uint8_t* target = packed.data();
    pack(array, arguments.byte_strides, 0, static_cast<const uint8_t*>(data), target);
    data = packed.data();
  }
  if (bytes > 0) check(device->client->table->write(buffer->get(), data, bytes));
  arguments.done_with_host_buffer = new Event;
  arguments.buffer = buffer.release();
}

void make_unwritten(Uninitialized& arguments) {
  const auto array = served(arguments.type, arguments.sizes, arguments.dims);
  check_layout(array, arguments.layout);
  auto* device = place_of(arguments.device, arguments.memory);
  arguments.buffer = new Buffer(device, array, new_storage(device, *array.bytes()));
}

void read_to_host(ToHost& arguments) {
  const Buffer& buffer = *arguments.source;
  check_layout(buffer.array, arguments.layout);
  const auto bytes = static_cast<size_t>(buffer.bytes());
  if (arguments.target == nullptr) {
    arguments.target_size = bytes;
    return;
  }
  if (arguments.target_size < bytes) throw Refusal{Code::kInvalidArgument, "the host's memory is smaller than the array"};
  auto* storage = buffer.get();
  if (bytes > 0) check(buffer.table().read(storage, 0, arguments.target, static_cast<int64_t>(bytes)));
  arguments.event = new Event;
}

void read_part(RawToHost& arguments) {
  const Buffer& buffer = *arguments.buffer;
  if (arguments.offset < 0 || arguments.bytes < 0 || arguments.offset > buffer.bytes() - arguments.bytes) throw Refusal{Code::kInvalidArgument, "a part beyond the array's end"};
  auto* storage = buffer.get();
  if (arguments.bytes > 0) check(buffer.table().read(storage, arguments.offset, arguments.target, arguments.bytes));
  arguments.event = new Event;
}

Buffer* copy_to(const Buffer& buffer, Device* device) {
  DeviceStorage* storage = nullptr;
  device->check_room(buffer.bytes());
  check(buffer.table().copy(buffer.get(), buffer.bytes(), device->session, &storage));
  return new Buffer(device, buffer.array, owned(storage, *device, buffer.bytes()));
}
void copy_to_device(CopyTo<Device>& arguments) { arguments.copy = copy_to(*arguments.buffer, arguments.place); }
void copy_to_memory(CopyTo<Memory>& arguments) { arguments.copy = copy_to(*arguments.buffer, arguments.place->device); }

void destroy_buffer(Property<Buffer, int>& arguments) { delete arguments.owner; }
void delete_buffer(Property<Buffer, int>& arguments) { arguments.owner->storage.reset(); }
void tell_deleted(Property<Buffer, bool>& arguments) { arguments.value = !arguments.owner->storage; }
void tell_type(Property<Buffer, Type>& arguments) { arguments.value = arguments.owner->array.type; }
void tell_sizes(Property<Buffer, Dimensions>& arguments) { arguments.value = {arguments.owner->array.sizes.data(), arguments.owner->array.sizes.size()}; }
void tell_no_dynamic_sizes(Property<Buffer, DynamicDimensions>& arguments) { arguments.value = {nullptr, 0}; }
void tell_bytes(Property<Buffer, size_t>& arguments) { arguments.value = static_cast<size_t>(arguments.owner->bytes()); }
void tell_device(Property<Buffer, Device*>& arguments) { arguments.value = arguments.owner->device; }
void tell_memory(Property<Buffer, Memory*>& arguments) { arguments.value = &arguments.owner->device->memory; }
void tell_on_cpu(Property<Buffer, bool>& arguments) { arguments.value = false; }
void tell_layout(Property<Buffer, Layout>& arguments) {
  auto& layout = arguments.value;
  layout.kind = LayoutKind::kTiled;
  layout.tiled = {};
  layout.tiled.minor_to_major = arguments.owner->minor_to_major.data();
  layout.tiled.minor_to_major_size = arguments.owner->minor_to_major.size();
}
void tell_ready_event(Property<Buffer, Event*>& arguments) { arguments.value = new Event{&arguments.owner->table(), arguments.owner->device->session}; }

}  // namespace

void enter_buffers(Functions& functions) {
  PJRT_SET(functions, Client_BufferFromHostBuffer, make_from_host);
  PJRT_SET(functions, Client_CreateUninitializedBuffer, make_unwritten);
  PJRT_SET(functions, Buffer_ToHostBuffer, read_to_host);
  PJRT_SET(functions, Buffer_CopyRawToHost, read_part);
  PJRT_SET(functions, Buffer_CopyToDevice, copy_to_device);
  PJRT_SET(functions, Buffer_CopyToMemory, copy_to_memory);
  PJRT_SET(functions, Buffer_Destroy, destroy_buffer);
  PJRT_SET(functions, Buffer_Delete, delete_buffer);
  PJRT_SET(functions, Buffer_IsDeleted, tell_deleted);
  PJRT_SET(functions, Buffer_ElementType, tell_type);
  PJRT_SET(functions, Buffer_Dimensions, tell_sizes);
  PJRT_SET(functions, Buffer_UnpaddedDimensions, tell_sizes);
  PJRT_SET(functions, Buffer_DynamicDimensionIndices, tell_no_dynamic_sizes);
  PJRT_SET(functions, Buffer_GetMemoryLayout, tell_layout);
  PJRT_SET(functions, Buffer_OnDeviceSizeInBytes, tell_bytes);
  PJRT_SET(functions, Buffer_Device, tell_device);
  PJRT_SET(functions, Buffer_Memory, tell_memory);
  PJRT_SET(functions, Buffer_IsOnCpu, tell_on_cpu);
  PJRT_SET(functions, Buffer_ReadyEvent, tell_ready_event);
}

}  // namespace forebay::pjrt
