// Programs: compiled by the device's worker, and carried out there.
#include <algorithm>

#include "compile_options.h"
#include "objects.h"

namespace forebay::pjrt {

struct SerializedAssignment {
  std::string bytes;
};

namespace {

void complete(Compiled& compiled) {
  for (const auto& output : compiled.signature.outputs) {
    compiled.output_types.push_back(output.type);
    compiled.output_sizes.insert(compiled.output_sizes.end(), output.sizes.begin(), output.sizes.end());
    compiled.output_dims.push_back(output.sizes.size());
    compiled.output_bytes.push_back(*output.bytes());
    compiled.memory_kinds.push_back(compiled.device->memory.kind.data());
    compiled.memory_kind_sizes.push_back(compiled.device->memory.kind.size());
  }
}

void compile(Compile& arguments) {
  const auto options = read_compile_options({arguments.options, arguments.options_size});
  if (options.replicas != 1 || options.partitions != 1) throw Refusal{Code::kUnimplemented, "a program for several devices is not served on the virtual device yet; shard it over one"};
  if (options.has_overrides) throw Refusal{Code::kUnimplemented, "compiler_options are not served on the virtual device; leave them out"};
  const auto& devices = arguments.client->devices;
  if (options.device < 0 || static_cast<size_t>(options.device) >= devices.size()) throw Refusal{Code::kInvalidArgument, "the program is for a device that there is not"};
  auto compiled = std::make_shared<Compiled>();
  compiled->device = devices[static_cast<size_t>(options.device)];
  compiled->number = arguments.client->table->new_program();
  compiled->module.assign(arguments.program->code, arguments.program->code_size);
  const auto program = compiled->program();
  const auto take = [](void* context, const uint8_t* signature, size_t bytes) {
    wire::Reader body(signature, bytes);
    static_cast<Compiled*>(context)->signature = wire::get_signature(body);
  };
  check(arguments.client->table->compile(options.device, &program, take, compiled.get()));
  complete(*compiled);
  arguments.executable = new LoadedExecutable{std::move(compiled)};
}

// What the caller gives up.
std::vector<Buffer*> donated(const Compiled& compiled, const Execute& arguments) {
  const auto& options = *arguments.options;
  const auto* end = options.kept_inputs + options.kept_input_count;
  std::vector<Buffer*> given_up;
  for (const uint64_t input : compiled.signature.donated) {
    if (std::find(options.kept_inputs, end, static_cast<int64_t>(input)) == end) given_up.push_back(arguments.inputs[0][input]);
  }
  return given_up;
}

void check_given_once(const std::vector<Buffer*>& given_up, const Execute& arguments) {
  for (const auto* buffer : given_up) {
    const auto uses = std::count(arguments.inputs[0], arguments.inputs[0] + arguments.input_count, buffer);
    if (uses > 1) throw Refusal{Code::kInvalidArgument, "an array that is donated is given to the program more than once"};
  }
}

void execute(Execute& arguments) {
  const auto& compiled = *arguments.executable->compiled;
  const auto& table = *compiled.device->client->table;
  if (arguments.executable->deleted) throw Refusal{Code::kInvalidArgument, "the program has been deleted"};
  if (arguments.devices != 1 || arguments.options->sends + arguments.options->receives > 0) throw Refusal{Code::kUnimplemented, "this way to run a program is not served on the virtual device"};
  if (arguments.input_count != compiled.signature.inputs.size()) throw Refusal{Code::kInvalidArgument, "the program takes another number of arrays"};
  Buffer* const* inputs = arguments.inputs[0];
  std::vector<DeviceStorage*> storages;
  for (size_t index = 0; index < arguments.input_count; ++index) {
    if (inputs[index]->device != compiled.device) throw Refusal{Code::kInvalidArgument, "an array of another device than the program's"};
    if (inputs[index]->bytes() != *compiled.signature.inputs[index].bytes()) throw Refusal{Code::kInvalidArgument, "an array of another size than the program takes"};
    storages.push_back(inputs[index]->get());
  }
  const auto given_up = donated(compiled, arguments);
  check_given_once(given_up, arguments);
  const auto program = compiled.program();
  std::vector<DeviceStorage*> made(compiled.output_bytes.size());
  check(table.execute(compiled.device->description.id, &program, storages.data(), storages.size(), compiled.output_bytes.data(), made.size(), made.data()));
  for (size_t index = 0; index < made.size(); ++index) {
    arguments.outputs[0][index] = new Buffer(compiled.device, compiled.signature.outputs[index], Storage(made[index], DropStorage{&table}));
  }
  for (auto* buffer : given_up) buffer->storage.reset();  // the worker keeps it until the program is done
  if (arguments.done != nullptr) arguments.done[0] = new Event;
}

void get_executable(Property<LoadedExecutable, Executable*>& arguments) { arguments.value = new Executable{arguments.owner->compiled}; }
void destroy_executable(Property<Executable, int>& arguments) { delete arguments.owner; }
void destroy_loaded(Property<LoadedExecutable, int>& arguments) { delete arguments.owner; }
void delete_loaded(Property<LoadedExecutable, int>& arguments) { arguments.owner->deleted = true; }
void tell_deleted_program(Property<LoadedExecutable, bool>& arguments) { arguments.value = arguments.owner->deleted; }
void tell_program_devices(Property<LoadedExecutable, List<Device>>& arguments) { arguments.value = {&arguments.owner->compiled->device, 1}; }
// One replica of one computation, on this device: see compile_options.h.
void tell_assignment(DeviceAssignment& arguments) {
  const auto device = static_cast<char>(arguments.executable->compiled->device->description.id);
  arguments.assignment = new SerializedAssignment{{0x08, 1, 0x10, 1, 0x1a, 3, 0x0a, 1, device}};
  arguments.serialized = text_of(arguments.assignment->bytes);
  arguments.destroy = [](SerializedAssignment* assignment) { delete assignment; };
}
void tell_program_name(Property<Executable, Text>& arguments) { arguments.value = text_of(arguments.owner->compiled->signature.name); }
void tell_one(Property<Executable, size_t>& arguments) { arguments.value = 1; }
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
  PJRT_SET(functions, Executable_NumReplicas, tell_one);
  PJRT_SET(functions, Executable_NumPartitions, tell_one);
  PJRT_SET(functions, Executable_NumOutputs, tell_outputs);
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
