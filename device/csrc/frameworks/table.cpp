#include "frameworks/table.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/devices.h"
#include "base/memory.h"
#include "base/python.h"
#include "base/waiting.h"
#include "recorder/programs.h"
#include "runtime/storage.h"
#include "stream/stream.h"
#include "stream/transfers.h"

namespace forebay {

struct DeviceStorage {
  c10::Storage storage;
};

namespace {

Outcome failed(Fault fault, const char* message) { return {fault, ::strdup(message)}; }

// An interrupt stays pending in the interpreter, which raises it as soon as the framework returns to it.
Outcome interrupted(python_error& error) {
  const pybind11::gil_scoped_acquire gil;
  error.restore();
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    PyErr_SetInterrupt();
    return failed(Fault::kInterrupted, "interrupted");
  }
  const pybind11::error_already_set raised;
  return failed(Fault::kFailed, pybind11::str(raised.value()).cast<std::string>().c_str());
}

template <typename Work>
Outcome carried_out(const Work& work) {
  try {
    refuse_in_callback();
    work();
    return {Fault::kNone, nullptr};
  } catch (python_error& error) {
    return interrupted(error);
  } catch (const c10::OutOfMemoryError& error) {
    return failed(Fault::kOutOfMemory, error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return failed(Fault::kUnsupported, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return failed(Fault::kInvalid, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(Fault::kFailed, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(Fault::kFailed, error.what());
  }
}

CommandStream& stream_at(int32_t device) { return CommandStream::of(static_cast<c10::DeviceIndex>(device)); }
StorageHandle& handle_at(DeviceStorage* storage) { return handle_of(storage->storage); }
CommandStream& stream_for(DeviceStorage* storage) { return CommandStream::of(handle_at(storage).device); }

// All of a storage, as PyTorch sees it.
at::Tensor bytes_of(const c10::Storage& storage, int64_t bytes) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

c10::Storage new_storage(int32_t device, int64_t bytes) {
  const OnDevice there(static_cast<c10::DeviceIndex>(device));
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), device_allocator(), /*resizable=*/false);
}

Outcome make(int32_t device, int64_t bytes, DeviceStorage** storage) {
  return carried_out([&] { *storage = new DeviceStorage{new_storage(device, bytes)}; });
}

void drop(DeviceStorage* storage) { delete storage; }

Outcome write(DeviceStorage* storage, const void* data, int64_t bytes) {
  return carried_out([&] { Transfers(stream_for(storage)).write(handle_at(storage), 0, data, bytes); });
}

Outcome read(DeviceStorage* storage, int64_t offset, void* data, int64_t bytes) {
  return carried_out([&] { Transfers(stream_for(storage)).read(handle_at(storage), offset, data, bytes); });
}

Outcome copy(DeviceStorage* source, int64_t bytes, int32_t device, DeviceStorage** target) {
  return carried_out([&] {
    handle_at(source);  // throws where it is lost
    auto made = std::make_unique<DeviceStorage>(DeviceStorage{new_storage(device, bytes)});
    if (bytes > 0) bytes_of(made->storage, bytes).copy_(bytes_of(source->storage, bytes));
    *target = made.release();
  });
}

Outcome await(int32_t device) {
  return carried_out([&] { stream_at(device).synchronize(); });
}

uint64_t new_program() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

WholeProgram program_of(const DeviceProgram& program) {
  return {program.number, {program.module, program.bytes}, {program.placement, program.placement_bytes}, program.calls_back};
}

Outcome compile(int32_t device, const DeviceProgram* program, void (*take)(void* context, const uint8_t* signature, size_t bytes), void* context) {
  return carried_out([&] {
    compile_program(stream_at(device), program_of(*program), [&](const wire::ProgramSignature& signature) {
      wire::Writer told;
      wire::put_signature(told, signature);
      take(context, told.bytes().data(), told.size());
    });
  });
}

Outcome execute(int32_t device, const DeviceProgram* program, DeviceStorage* const* inputs, size_t input_count, const int64_t* output_bytes, size_t output_count,
                DeviceStorage** outputs) {
  return carried_out([&] {
    std::vector<c10::Storage> given;
    for (size_t index = 0; index < input_count; ++index) given.push_back(inputs[index]->storage);
    const auto made = execute_program(stream_at(device), program_of(*program), given, {output_bytes, output_bytes + output_count});
    for (size_t index = 0; index < output_count; ++index) outputs[index] = new DeviceStorage{made[index]};
  });
}

void memory_figures(int32_t device, DeviceMemory* memory) {
  const auto use = memory_use(static_cast<c10::DeviceIndex>(device));
  const int64_t limit = stream_at(device).lease().memory_limit();
  *memory = {use.allocated, use.peak, limit == wire::kStorageBytesMax ? 0 : limit, use.allocations};
}

}  // namespace

void answer_callbacks(const pybind11::object& answer) {
  auto* kept = new pybind11::object(answer);
  answer_callbacks_by([kept](uint64_t number, const wire::CallbackArrays& arrays) {
    CallbackAnswer returned;
    call_python([&] {
      pybind11::list given;
      for (const auto& array : arrays) given.append(pybind11::bytes(array));
      const pybind11::object made = (*kept)(number, given);
      if (pybind11::isinstance<pybind11::str>(made)) {
        returned = made.cast<std::string>();
      } else {
        returned = made.cast<std::vector<std::string>>();
      }
    });
    return returned;
  });
}

const DeviceTable& device_table() {
  static const DeviceTable table{
      kDeviceTableVersion, [] { return static_cast<int32_t>(device_count()); }, &new_program, &make, &drop, &write, &read, &copy, &await, &compile, &execute, &memory_figures};
  return table;
}

}  // namespace forebay
