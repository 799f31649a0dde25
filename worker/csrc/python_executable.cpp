#include "python_executable.h"

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/dlpack.h>
#include <pybind11/stl.h>

#include "base/failure.h"
#include "base/memory.h"

namespace py = pybind11;

namespace forebay::worker {

namespace {

using wire::ElementType;

DLDataType dlpack_type(uint8_t type) {
  const auto bits = static_cast<uint8_t>(8 * wire::item_bytes(type));
  switch (static_cast<ElementType>(type)) {
    case ElementType::kPred:
      return {kDLBool, bits, 1};
    case ElementType::kS8:
    case ElementType::kS16:
    case ElementType::kS32:
    case ElementType::kS64:
      return {kDLInt, bits, 1};
    case ElementType::kU8:
    case ElementType::kU16:
    case ElementType::kU32:
    case ElementType::kU64:
      return {kDLUInt, bits, 1};
    case ElementType::kF16:
    case ElementType::kF32:
    case ElementType::kF64:
      return {kDLFloat, bits, 1};
    case ElementType::kBF16:
      return {kDLBfloat, bits, 1};
    case ElementType::kC64:
    case ElementType::kC128:
      return {kDLComplex, bits, 1};
    case ElementType::kF8E5M2:
      return {kDLFloat8_e5m2, bits, 1};
    case ElementType::kF8E4M3FN:
      return {kDLFloat8_e4m3fn, bits, 1};
    case ElementType::kF8E4M3B11FNUZ:
      return {kDLFloat8_e4m3b11fnuz, bits, 1};
    case ElementType::kF8E5M2FNUZ:
      return {kDLFloat8_e5m2fnuz, bits, 1};
    case ElementType::kF8E4M3FNUZ:
      return {kDLFloat8_e4m3fnuz, bits, 1};
    case ElementType::kF8E4M3:
      return {kDLFloat8_e4m3, bits, 1};
    case ElementType::kF8E3M4:
      return {kDLFloat8_e3m4, bits, 1};
    case ElementType::kF8E8M0FNU:
      return {kDLFloat8_e8m0fnu, bits, 1};
  }
  throw wire::WireError("an array of unknown type " + std::to_string(type));
}

// A storage's memory as others take it over: without a copy, and kept as long as they have it.
struct LentArray {
  c10::Storage memory;
  std::vector<int64_t> sizes;
  DLManagedTensor managed{};
};

py::capsule lent(const c10::Storage& memory, const wire::ProgramArray& array) {
  auto owner = std::make_unique<LentArray>(LentArray{memory, array.sizes});
  owner->managed.dl_tensor = {memory.mutable_data(), {kDLCPU, 0}, static_cast<int32_t>(array.sizes.size()), dlpack_type(array.type), owner->sizes.data(), nullptr, 0};
  owner->managed.manager_ctx = owner.get();
  owner->managed.deleter = [](DLManagedTensor* managed) { delete static_cast<LentArray*>(managed->manager_ctx); };
  return py::capsule(&owner.release()->managed, "dltensor", [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // taken over
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  });
}

// With the GIL.
CommandError error_for_client(py::error_already_set& error) {
  using wire::FailureCode;
  FailureCode code = FailureCode::kOperator;
  if (error.matches(PyExc_NotImplementedError)) code = FailureCode::kUnsupported;
  if (error.matches(PyExc_MemoryError)) code = FailureCode::kOutOfMemory;
  if (error.matches(PyExc_ValueError)) code = FailureCode::kValue;
  return {code, py::str(error.value()).cast<std::string>()};
}

using ArrayAsTuple = std::tuple<uint8_t, std::vector<int64_t>>;

std::vector<wire::ProgramArray> arrays_of(const py::object& executable, const char* name) {
  std::vector<wire::ProgramArray> arrays;
  for (auto& [type, sizes] : executable.attr(name).cast<std::vector<ArrayAsTuple>>()) arrays.push_back({type, std::move(sizes)});
  return arrays;
}

// call_back(number, arrays): list[bytes], or the sentence why there is none.
py::object callable_for_python(CallbackHost& callbacks) {
  return py::cpp_function([&callbacks](uint64_t number, const std::vector<py::bytes>& arrays) -> py::object {
    const wire::CallbackArrays given(arrays.begin(), arrays.end());
    std::variant<wire::CallbackArrays, std::string> returned;
    {
      const py::gil_scoped_release unlocked;
      returned = callbacks.call(number, given);
    }
    if (auto* why = std::get_if<std::string>(&returned)) return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(why->data(), static_cast<Py_ssize_t>(why->size()), "replace"));
    py::list made;
    for (const auto& array : std::get<wire::CallbackArrays>(returned)) made.append(py::bytes(array));
    return made;
  });
}

// The fields of forebay_worker.user_code.program_placements.Placement.
py::tuple placement_for_python(const wire::ProgramPlacement& placement) {
  const auto booleans = [](const std::vector<uint8_t>& flags) { return std::vector<bool>(flags.begin(), flags.end()); };
  return py::make_tuple(placement.replicas, placement.partitions, placement.devices, placement.by_partitioner, placement.by_shardy, booleans(placement.free_inputs),
                        booleans(placement.free_outputs));
}

class PythonExecutable final : public Executable {
 public:
  explicit PythonExecutable(py::object executable) : executable_(std::move(executable)) {
    signature_ = {executable_.attr("name").cast<std::string>(),
                  executable_.attr("devices").cast<uint64_t>(),
                  arrays_of(executable_, "inputs"),
                  arrays_of(executable_, "outputs"),
                  executable_.attr("donated").cast<std::vector<uint64_t>>(),
                  executable_.attr("temporary_bytes").cast<uint64_t>(),
                  executable_.attr("calls_back").cast<bool>(),
                  executable_.attr("compiled").cast<std::string>()};
  }
  ~PythonExecutable() override {
    const py::gil_scoped_acquire lock;
    executable_ = py::object();
  }
  PythonExecutable(const PythonExecutable&) = delete;
  PythonExecutable& operator=(const PythonExecutable&) = delete;

  const wire::ProgramSignature& signature() const override { return signature_; }

  std::vector<c10::Storage> run(const std::vector<c10::Storage>& inputs, bool is_counted) override {
    const py::gil_scoped_acquire lock;
    try {
      py::list arrays;
      for (size_t index = 0; index < inputs.size(); ++index) arrays.append(lent(inputs[index], signature_.inputs[index % signature_.inputs.size()]));
      const py::list made = executable_.attr("run")(std::move(arrays));
      if (made.size() != signature_.devices * signature_.outputs.size()) throw CommandError(wire::FailureCode::kGeometry, "the program made other arrays than it was compiled for");
      std::vector<c10::Storage> outputs;
      for (const auto& one : made) {
        outputs.push_back(taken(py::reinterpret_borrow<py::object>(one), signature_.outputs[outputs.size() % signature_.outputs.size()], is_counted));
      }
      return outputs;
    } catch (py::error_already_set& error) {
      throw error_for_client(error);
    }
  }

 private:
  // The memory of an array that the runtime made, which is kept as long as the storage: (array, address, bytes).
  static c10::Storage taken(const py::object& made, const wire::ProgramArray& expected, bool is_counted) {
    auto [array, address, bytes] = made.cast<std::tuple<py::object, uintptr_t, int64_t>>();
    if (bytes != *expected.bytes()) throw CommandError(wire::FailureCode::kGeometry, "the program made an array of another size than it was compiled for");
    auto* kept = new py::object(std::move(array));
    const auto release = [kept] {
      const py::gil_scoped_acquire lock;
      delete kept;
    };
    return {c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), adopt_on_host(reinterpret_cast<void*>(address), bytes, release, is_counted), nullptr,
            /*resizable=*/false};
  }

  py::object executable_;
  wire::ProgramSignature signature_;
};

}  // namespace

std::unique_ptr<Executable> compile_by_python(const py::object& compile, const std::string& module, const wire::ProgramPlacement& placement, CallbackHost& callbacks) {
  const py::gil_scoped_acquire lock;
  try {
    return std::make_unique<PythonExecutable>(compile(py::bytes(module), placement_for_python(placement), callable_for_python(callbacks)));
  } catch (py::error_already_set& error) {
    throw error_for_client(error);
  } catch (const py::cast_error& error) {
    throw CommandError(wire::FailureCode::kUnsupported, error.what());
  }
}

}  // namespace forebay::worker
