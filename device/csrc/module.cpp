// forebay._C: what Python may ask of the virtual device; device/forebay/_C.pyi says it with types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/version.h>

#include <mutex>

#include "devices.h"
#include "generator.h"
#include "profile.h"
#include "recorder.h"
#include "registration.h"
#include "storage.h"
#include "stream.h"

namespace py = pybind11;

namespace forebay {
namespace {

// Read from the file before it is loaded (device/forebay/pytorch_build.py), since loading is what a wrong build may not survive.
[[gnu::used]] const char built_for[] = "forebay-built-for-torch=" TORCH_VERSION;

void install(int devices) {
  static std::once_flag once;
  std::call_once(once, [devices] {
    set_device_count(static_cast<c10::DeviceIndex>(devices));
    c10::SetAllocator(c10::kCUDA, device_allocator(), 1);
    install_guard();
    install_operators();
    install_hooks();
  });
}

CommandStream& stream_of(int device) { return CommandStream::of(device_named(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)))); }

py::dict connect(const std::string& address, const py::bytes& ticket, int device) {
  const auto welcome = stream_of(device).connect(address, std::string(ticket));
  py::dict result;
  result["torch"] = welcome.torch;
  result["kind"] = welcome.kind;
  result["model"] = welcome.model;
  result["memory_limit"] = welcome.memory_limit;
  return result;
}

void set_lease_callback(py::object callback) {
  // Kept for good: device work may be recorded until the interpreter is gone.
  auto* kept = new py::object(std::move(callback));
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    CommandStream::of(device).set_lease_callback([kept, device] { (*kept)(static_cast<int>(device)); });
  }
}

py::dict memory(int device) {
  const auto use = memory_use(stream_of(device).device());
  py::dict result;
  result["allocated"] = use.allocated;
  result["peak"] = use.peak;
  result["allocations"] = use.allocations;
  result["frees"] = use.frees;
  result["alive"] = use.alive;
  return result;
}

py::dict statistics(int device) {
  const auto& stream = stream_of(device);
  const auto numbers = stream.statistics();
  py::dict result;
  result["commands"] = numbers.calls;
  result["frames_sent"] = numbers.frames_sent;
  result["bytes_sent"] = numbers.bytes_sent;
  result["bytes_received"] = numbers.bytes_received;
  result["expected"] = numbers.expected;
  result["syncs"] = numbers.syncs;
  result["waited_ns"] = numbers.waited_ns;
  result["bytes_known"] = numbers.bytes_known;
  result["busy_ns"] = busy_ns(stream.device());
  result["templates"] = Recorder::of(stream.device()).templates();
  return result;
}

py::list end_profile_for_python() {
  py::list result;
  for (const auto& total : end_profile()) {
    py::dict row;
    row["device"] = static_cast<int>(total.device);
    row["activity"] = total.activity;
    row["subject"] = total.subject;
    row["line"] = total.line;
    row["function"] = total.function;
    row["count"] = total.count;
    row["bytes"] = total.bytes;
    row["ns"] = total.ns;
    row["longest_ns"] = total.longest_ns;
    result.append(std::move(row));
  }
  return result;
}

void resize(const py::handle& storage, int64_t bytes) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage.ptr()), "resize_storage() takes a torch.UntypedStorage");
  resize_storage(THPStorage_Unpack(storage.ptr()), bytes);
}

}  // namespace
}  // namespace forebay

PYBIND11_MODULE(_C, module) {
  using forebay::stream_of;
  const auto device = py::arg("device") = 0;
  module.attr("DEVICES_MAX") = static_cast<int>(forebay::kDevicesMax);
  module.def("install", &forebay::install, py::arg("devices") = 1);
  module.def("withdraw", &forebay::withdraw_devices);
  module.def("device_count", [] { return static_cast<int>(forebay::device_count()); });
  module.def("current_device", [] { return static_cast<int>(forebay::current_device()); });
  module.def("set_device", [](int index) { forebay::set_current_device(static_cast<c10::DeviceIndex>(index)); });
  module.def("set_lease_callback", &forebay::set_lease_callback);
  module.def("connect", &forebay::connect, py::arg("address"), py::arg("ticket"), device);
  module.def("connected", [](int index) { return stream_of(index).connected(); }, device);
  module.def("lease_opened", [](uint64_t epoch, int index) { stream_of(index).lease_opened(epoch); }, py::arg("epoch"), device);
  module.def("lease_closed", [](int index) { stream_of(index).lease_closed(); }, device);
  module.def("mark", [](int index) { return stream_of(index).mark(); }, device);
  module.def("synchronize", [](int index) { stream_of(index).synchronize(); }, device);
  module.def("lose", [](const std::string& message, int index) { stream_of(index).lose(message); }, py::arg("message"), device);
  module.def("leave", [](int index) { return stream_of(index).leave(); }, device);
  module.def("memory", &forebay::memory, device);
  module.def("resize_storage", &forebay::resize);
  module.def("reset_peak_memory", [](int index) { forebay::reset_peak_memory(stream_of(index).device()); }, device);
  module.def("recorded", [] { return forebay::recorded(); });
  module.def("begin_profile", &forebay::begin_profile);
  module.def("end_profile", &forebay::end_profile_for_python);
  module.def("statistics", &forebay::statistics, device);
  module.def(
      "default_generator", [](int index) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(forebay::default_generator(stream_of(index).device()))); }, device);
}
