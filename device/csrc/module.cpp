// forebay._C: what Python may ask of the virtual device; device/forebay/_C.pyi says it with types.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/version.h>

#include <mutex>

#include "generator.h"
#include "recorder.h"
#include "registration.h"
#include "storage.h"
#include "stream.h"

namespace py = pybind11;

namespace forebay {
namespace {

// Read from the file before it is loaded (device/forebay/pytorch_build.py), since loading is what a wrong build may not survive.
[[gnu::used]] const char built_for[] = "forebay-built-for-torch=" TORCH_VERSION;

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(c10::kCUDA, device_allocator(), 1);
    install_guard();
    install_operators();
    install_hooks();
  });
}

py::dict connect(const std::string& address, const py::bytes& ticket) {
  const auto welcome = CommandStream::get().connect(address, std::string(ticket));
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
  CommandStream::get().set_lease_callback([kept] { (*kept)(); });
}

py::dict memory() {
  const auto use = memory_use();
  py::dict result;
  result["allocated"] = use.allocated;
  result["peak"] = use.peak;
  result["allocations"] = use.allocations;
  result["frees"] = use.frees;
  result["alive"] = use.alive;
  return result;
}

py::dict statistics() {
  const auto numbers = CommandStream::get().statistics();
  py::dict result;
  result["commands"] = numbers.calls;
  result["bytes_sent"] = numbers.bytes_sent;
  result["bytes_received"] = numbers.bytes_received;
  result["syncs"] = numbers.syncs;
  result["waited_ns"] = numbers.waited_ns;
  result["templates"] = Recorder::get().templates();
  return result;
}

void resize(const py::handle& storage, int64_t bytes) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage.ptr()), "resize_storage() takes a torch.UntypedStorage");
  resize_storage(THPStorage_Unpack(storage.ptr()), bytes);
}

}  // namespace
}  // namespace forebay

PYBIND11_MODULE(_C, module) {
  using forebay::CommandStream;
  module.def("install", &forebay::install);
  module.def("set_lease_callback", &forebay::set_lease_callback);
  module.def("connect", &forebay::connect);
  module.def("connected", [] { return CommandStream::get().connected(); });
  module.def("lease_opened", [](uint64_t epoch) { CommandStream::get().lease_opened(epoch); });
  module.def("lease_closed", [] { CommandStream::get().lease_closed(); });
  module.def("mark", [] { return CommandStream::get().mark(); });
  module.def("synchronize", [] { CommandStream::get().synchronize(); });
  module.def("lose", [](const std::string& message) { CommandStream::get().lose(message); });
  module.def("memory", &forebay::memory);
  module.def("resize_storage", &forebay::resize);
  module.def("reset_peak_memory", &forebay::reset_peak_memory);
  module.def("recorded", [] { return forebay::recorded(); });
  module.def("statistics", &forebay::statistics);
  module.def("default_generator", [] { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(forebay::default_generator(0))); });
}
