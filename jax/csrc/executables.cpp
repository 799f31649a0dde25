// Programs: compiled by the device's worker, and carried out there.
#include <algorithm>
#include <numeric>

#include "compile_options.h"
#include "objects.h"
#include "proto_messages.h"

namespace forebay::pjrt {

struct SerializedAssignment {
  std::string bytes;
};

namespace {

constexpr const char kHloWithConfig[] = "hlo_with_config";

void complete(Compiled& compiled) {
  const auto& kind = compiled.devices.front()->memory.kind;
  for (const auto& output : compiled.signature.outputs) {
    compiled.output_types.push_back(output.type);
    compiled.output_sizes.insert(compiled.output_sizes.end(), output.sizes.begin(), output.sizes.end());
    compiled.output_dims.push_back(output.sizes.size());
    compiled.output_bytes.push_back(*output.bytes());
    compiled.memory_kinds.push_back(kind.data());
    compiled.memory_kind_sizes.push_back(kind.size());
  }
  if (compiled.signature.devices != compiled.devices.size()) throw Refusal{Code::kInternal, "the program was compiled for another number of devices"};
  compiled.divided = with_config(compiled.signature.compiled);
  compiled.signature.compiled.clear();
}

void check_served(const CompileOptions& options) {
  if (options.has_overrides) throw Refusal{Code::kUnimplemented, "compiler_options are not served on the virtual device; leave them out"};
  if (options.has_automatic_partitioning) throw Refusal{Code::kUnimplemented, "automatic sharding is not served on the virtual device; say how arrays are sharded"};
}

std::vector<Device*> devices_of(const CompileOptions& options, const std::vector<Device*>& all) {
  std::vector<Device*> devices;
  if (options.devices.empty()) devices.assign(all.begin(), all.begin() + 1);
  for (const int id : options.devices) {
    if (id < 0 || static_cast<size_t>(id) >= all.size()) throw Refusal{Code::kInvalidArgument, "the program is for a device that there is not"};
    devices.push_back(all[static_cast<size_t>(id)]);
    if (devices.back()->session == devices.front()->session) continue;
    throw Refusal{Code::kUnimplemented, "a program over virtual devices of several sessions is not served: choose a flavor of several devices, and leave FOREBAY_DEVICES out"};
  }
  if (devices.size() != options.replicas * options.partitions) throw Refusal{Code::kInvalidArgument, "the program is for another number of devices than it names"};
  return devices;
}

std::vector<uint8_t> placement_of(const CompileOptions& options, const std::vector<Device*>& devices) {
  wire::ProgramPlacement placement{options.replicas, options.partitions, {}, options.by_partitioner, options.by_shardy, options.free_inputs, options.free_outputs};
  for (const auto* device : devices) placement.devices.push_back(device->place);
  wire::Writer out;
  wire::put_placement(out, placement);
  return {out.bytes().begin(), out.bytes().end()};
}

void compile(Compile& arguments) {
  const auto options = read_compile_options({arguments.options, arguments.options_size});
  check_served(options);
  auto compiled = std::make_shared<Compiled>();
  compiled->devices = devices_of(options, arguments.client->devices);
  compiled->replicas = options.replicas;
  compiled->partitions = options.partitions;
  compiled->placement = placement_of(options, compiled->devices);
  compiled->number = arguments.client->table->new_program();
  compiled->module.assign(arguments.program->code, arguments.program->code_size);
  const auto program = compiled->program();
  const auto take = [](void* context, const uint8_t* signature, size_t bytes) {
    wire::Reader body(signature, bytes);
    static_cast<Compiled*>(context)->signature = wire::get_signature(body);
  };
  check(arguments.client->table->compile(compiled->session(), &program, take, compiled.get()));
  complete(*compiled);
  arguments.executable = new LoadedExecutable{std::move(compiled)};
}

// What the caller gives up on one device.
std::vector<Buffer*> donated(const Compiled& compiled, const Execute& arguments, Buffer* const* inputs) {
  const auto& options = *arguments.options;
  const auto* end = options.kept_inputs + options.kept_input_count;
  std::vector<Buffer*> given_up;
  for (const uint64_t input : compiled.signature.donated) {
    if (std::find(options.kept_inputs, end, static_cast<int64_t>(input)) == end) given_up.push_back(inputs[input]);
  }
  return given_up;
}

void check_given_once(const std::vector<Buffer*>& given_up, const Execute& arguments, Buffer* const* inputs) {
  for (const auto* buffer : given_up) {
    const auto uses = std::count(inputs, inputs + arguments.input_count, buffer);
    if (uses > 1) throw Refusal{Code::kInvalidArgument, "an array that is donated is given to the program more than once"};
  }
}

// What a program is given on all its devices.
struct Given {
  std::vector<DeviceStorage*> storages;
  std::vector<Buffer*> given_up;

  void add(const Compiled& compiled, const Execute& arguments, size_t index) {
    Buffer* const* inputs = arguments.inputs[index];
    for (size_t input = 0; input < arguments.input_count; ++input) {
      if (inputs[input]->device != compiled.devices[index]) throw Refusal{Code::kInvalidArgument, "an array of another device than the program's"};
      if (inputs[input]->bytes() != *compiled.signature.inputs[input].bytes()) throw Refusal{Code::kInvalidArgument, "an array of another size than the program takes"};
      storages.push_back(inputs[input]->get());
    }
    const auto here = donated(compiled, arguments, inputs);
    check_given_once(here, arguments, inputs);
    given_up.insert(given_up.end(), here.begin(), here.end());
  }
};

void check_room(const Compiled& compiled) {
  const int64_t bytes = std::accumulate(compiled.output_bytes.begin(), compiled.output_bytes.end(), int64_t{0});
  for (const auto* device : compiled.devices) device->check_room(bytes);
}

void execute(Execute& arguments) {
  const auto& compiled = *arguments.executable->compiled;
  const auto& table = *compiled.devices.front()->client->table;
  if (arguments.executable->deleted) throw Refusal{Code::kInvalidArgument, "the program has been deleted"};
  if (arguments.devices != compiled.devices.size() || arguments.options->sends + arguments.options->receives > 0) {
    throw Refusal{Code::kUnimplemented, "this way to run a program is not served on the virtual device"};
  }
  if (arguments.input_count != compiled.signature.inputs.size()) throw Refusal{Code::kInvalidArgument, "the program takes another number of arrays"};
  Given given;
  for (size_t index = 0; index < compiled.devices.size(); ++index) given.add(compiled, arguments, index);
  check_room(compiled);
  const auto program = compiled.program();
  std::vector<int64_t> bytes;
  for (size_t index = 0; index < compiled.devices.size(); ++index) bytes.insert(bytes.end(), compiled.output_bytes.begin(), compiled.output_bytes.end());
  std::vector<DeviceStorage*> made(bytes.size());
  check(table.execute(compiled.session(), &program, given.storages.data(), given.storages.size(), bytes.data(), made.size(), made.data()));
  const size_t outputs = compiled.output_bytes.size();
  for (size_t index = 0; index < made.size(); ++index) {
    auto* device = compiled.devices[index / outputs];
    arguments.outputs[index / outputs][index % outputs] = new Buffer(device, compiled.signature.outputs[index % outputs], owned(made[index], *device, bytes[index]));
  }
  for (auto* buffer : given.given_up) buffer->storage.reset();  // the worker keeps it until the program is done
  for (size_t index = 0; arguments.done != nullptr && index < compiled.devices.size(); ++index) arguments.done[index] = new Event;
}

void get_executable(Property<LoadedExecutable, Executable*>& arguments) { arguments.value = new Executable{arguments.owner->compiled}; }
void destroy_executable(Property<Executable, int>& arguments) { delete arguments.owner; }
void destroy_loaded(Property<LoadedExecutable, int>& arguments) { delete arguments.owner; }
void delete_loaded(Property<LoadedExecutable, int>& arguments) { arguments.owner->deleted = true; }
void tell_deleted_program(Property<LoadedExecutable, bool>& arguments) { arguments.value = arguments.owner->deleted; }
void tell_program_devices(Property<LoadedExecutable, List<Device>>& arguments) {
  const auto& devices = arguments.owner->compiled->devices;
  arguments.value = {devices.data(), devices.size()};
}
void tell_assignment(DeviceAssignment& arguments) {
  const auto& compiled = *arguments.executable->compiled;
  std::vector<int> ids;
  for (const auto* device : compiled.devices) ids.push_back(device->description.id);
  arguments.assignment = new SerializedAssignment{device_assignment(compiled.replicas, compiled.partitions, ids)};
  arguments.serialized = text_of(arguments.assignment->bytes);
  arguments.destroy = [](SerializedAssignment* assignment) { delete assignment; };
}
void tell_program_name(Property<Executable, Text>& arguments) { arguments.value = text_of(arguments.owner->compiled->signature.name); }
void tell_replicas(Property<Executable, size_t>& arguments) { arguments.value = arguments.owner->compiled->replicas; }
void tell_partitions(Property<Executable, size_t>& arguments) { arguments.value = arguments.owner->compiled->partitions; }
// Asked twice: for the size, and for the bytes.
void tell_optimized(OptimizedProgram& arguments) {
  const auto& divided = arguments.executable->compiled->divided;
  if (divided.empty()) throw Refusal{Code::kUnimplemented, "what XLA has made of a program is told of those over several devices alone on the virtual device"};
  arguments.program->format = kHloWithConfig;
  arguments.program->format_size = sizeof(kHloWithConfig) - 1;
  arguments.program->code_size = divided.size();
  if (arguments.program->code != nullptr) std::copy(divided.begin(), divided.end(), arguments.program->code);
}
void tell_outputs(Property<Executable, size_t>& arguments) { arguments.value = arguments.owner->compiled->output_bytes.size(); }
void tell_code_size(Property<Executable, int64_t>& arguments) { arguments.value = 0; }  // it is the worker's
void tell_no_costs(CostAnalysis& arguments) {
  arguments.count = 0;
  arguments.properties = nullptr;
}
void tell_types(OutputTypes& arguments) {
  auto& types = arguments.executable->compiled->output_types;
  arguments.types = const_cast<Type*>(types.data());
  arguments.count = types.size();
}
void tell_dimensions(OutputDimensions& arguments) {
  const auto& compiled = *arguments.executable->compiled;
  arguments.count = compiled.output_dims.size();
  arguments.sizes = compiled.output_sizes.data();
  arguments.dims = compiled.output_dims.data();
}
void tell_memory_kinds(OutputMemoryKinds& arguments) {
  const auto& compiled = *arguments.executable->compiled;
  arguments.count = compiled.memory_kinds.size();
  arguments.kinds = compiled.memory_kinds.data();
  arguments.kind_sizes = compiled.memory_kind_sizes.data();
}

int64_t bytes_of(const std::vector<wire::ProgramArray>& arrays) {
  int64_t bytes = 0;
  for (const auto& array : arrays) bytes += *array.bytes();
  return bytes;
}

void tell_compiled_memory(CompiledMemory& arguments) {
  const auto& signature = arguments.executable->compiled->signature;
  arguments.generated_code_bytes = arguments.alias_bytes = 0;
  arguments.argument_bytes = bytes_of(signature.inputs);
  arguments.output_bytes = bytes_of(signature.outputs);
  arguments.temporary_bytes = static_cast<int64_t>(signature.temporary_bytes);
  for (auto& bytes : arguments.host_bytes) bytes = 0;
  const int64_t all = arguments.argument_bytes + arguments.output_bytes + arguments.temporary_bytes;
  if (arguments.bytes >= sizeof(arguments) - sizeof(arguments.total_bytes)) arguments.peak_bytes = all;
  if (arguments.bytes >= sizeof(arguments)) arguments.total_bytes = all;
}

void create_context(ContextCreate& arguments) { arguments.context = new ExecuteContext; }
void destroy_context(ContextOf& arguments) { delete arguments.context; }

}  // namespace

void enter_executables(Functions& functions) {
  PJRT_SET(functions, Client_Compile, compile);
  PJRT_SET(functions, LoadedExecutable_Execute, execute);
  PJRT_SET(functions, LoadedExecutable_GetExecutable, get_executable);
  PJRT_SET(functions, LoadedExecutable_AddressableDevices, tell_program_devices);
  PJRT_SET(functions, LoadedExecutable_GetDeviceAssignment, tell_assignment);
  PJRT_SET(functions, LoadedExecutable_Delete, delete_loaded);
  PJRT_SET(functions, LoadedExecutable_IsDeleted, tell_deleted_program);
  PJRT_SET(functions, LoadedExecutable_Destroy, destroy_loaded);
  PJRT_SET(functions, Executable_Destroy, destroy_executable);
  PJRT_SET(functions, Executable_Name, tell_program_name);
  PJRT_SET(functions, Executable_NumReplicas, tell_replicas);
  PJRT_SET(functions, Executable_NumPartitions, tell_partitions);
  PJRT_SET(functions, Executable_NumOutputs, tell_outputs);
  PJRT_SET(functions, Executable_OptimizedProgram, tell_optimized);
  PJRT_SET(functions, Executable_SizeOfGeneratedCodeInBytes, tell_code_size);
  PJRT_SET(functions, Executable_GetCostAnalysis, tell_no_costs);
  PJRT_SET(functions, Executable_OutputElementTypes, tell_types);
  PJRT_SET(functions, Executable_OutputDimensions, tell_dimensions);
  PJRT_SET(functions, Executable_OutputMemoryKinds, tell_memory_kinds);
  PJRT_SET(functions, Executable_GetCompiledMemoryStats, tell_compiled_memory);
  PJRT_SET(functions, ExecuteContext_Create, create_context);
  PJRT_SET(functions, ExecuteContext_Destroy, destroy_context);
}

}  // namespace forebay::pjrt
