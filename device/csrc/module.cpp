// forebay._C: what Python may ask of the virtual device; device/forebay/_C.pyi says it with types.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <mutex>
#include <unordered_set>

#include "aten/registration.h"
#include "base/autograd_threads.h"
#include "base/devices.h"
#include "base/generator.h"
#include "base/profile.h"
#include "base/memory.h"
#include "base/publication.h"
#include "distributed/process_group.h"
#include "forebay/gang_work.h"
#include "forebay/segments.h"
#include "frameworks/table.h"
#include "recorder/device_times.h"
#include "recorder/kernels_of_programs.h"
#include "recorder/known_calls.h"
#include "recorder/recorder.h"
#include "runtime/guard.h"
#include "runtime/hooks.h"
#include "runtime/storage.h"
#include "stream/checkpoints.h"
#include "stream/forks.h"
#include "stream/handover.h"
#include "stream/stream.h"

namespace py = pybind11;

namespace forebay {
namespace {

using namespace py::literals;

// Read from the file before it is loaded (device/forebay/pytorch_build.py), since loading is what a wrong build may not survive.
[[gnu::used]] const char built_for[] = "forebay-built-for-torch=" TORCH_VERSION;

void install(int devices) {
  static std::once_flag once;
  std::call_once(once, [devices] {
    set_device_count(static_cast<c10::DeviceIndex>(devices));
    Forks::follow();
    c10::SetAllocator(c10::kCUDA, device_allocator(), 1);
    install_guard();
    install_operators();
    install_hooks();
  });
}

CommandStream& stream_of(int device) { return CommandStream::of(device_named(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)))); }

// A method of the stream of the device that a call names behind the method's own arguments.
template <typename Result, typename... Arguments>
auto of_device(Result (CommandStream::*method)(Arguments...)) {
  return [method](Arguments... arguments, int device) { return (stream_of(device).*method)(arguments...); };
}

template <typename Result, typename... Arguments>
auto of_device(Result (CommandStream::*method)(Arguments...) const) {
  return [method](Arguments... arguments, int device) { return (stream_of(device).*method)(arguments...); };
}

py::dict connect(const std::string& address, const py::bytes& ticket, int device, std::optional<uint64_t> meeting, const std::string& certificate,
                 const std::string& authorization, const std::string& proxy, const std::string& proxy_authorization) {
  if (!certificate.empty() || !authorization.empty()) py::module_::import("ssl");  // loads the interpreter's OpenSSL
  const auto welcome = forebay::Handover(stream_of(device)).connect(address, std::string(ticket), meeting, {certificate, authorization, {proxy, proxy_authorization}});
  return py::dict("torch"_a = welcome.torch, "kind"_a = welcome.kind, "model"_a = welcome.model, "memory_limit"_a = welcome.memory_limit);
}

void set_lease_callback(py::object callback) {
  // Kept for good: device work may be recorded until the interpreter is gone.
  auto* kept = new py::object(std::move(callback));
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    CommandStream::of(device).lease().set_callback([kept, device] { (*kept)(static_cast<int>(device)); });
  }
}

void set_cut_callback(py::object callback) {
  auto* kept = new py::object(std::move(callback));  // for good, as above
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    Handover(CommandStream::of(device)).tell_cuts([kept, device] { call_python([kept, device] { (*kept)(static_cast<int>(device)); }); });
  }
}

py::dict memory(int device) {
  const auto use = memory_use(stream_of(device).device());
  return py::dict("allocated"_a = use.allocated, "peak"_a = use.peak, "allocations"_a = use.allocations, "frees"_a = use.frees, "alive"_a = use.alive);
}

py::dict statistics(int device) {
  auto& stream = stream_of(device);
  const auto& counters = stream.counters();
  return py::dict("commands"_a = stream.commands().upcoming_call(), "frames_sent"_a = counters.frames.load(), "bytes_sent"_a = counters.bytes_sent.load(),
                  "bytes_received"_a = counters.bytes_received.load(), "expected"_a = stream.commands().tracer().expected_steps(),
                  "syncs"_a = counters.questions.load(), "waited_ns"_a = counters.waited_ns.load(), "bytes_known"_a = counters.bytes_known.load(), "busy_ns"_a = busy_ns(stream.device()),
                  "images"_a = counters.images.load(), "templates"_a = Recorder::of(stream.device()).templates());
}

py::list segments(int device) {
  std::vector<wire::Segment> told;
  auto& stream = stream_of(device);
  if (stream.connected()) stream.ask_aside(wire::Command::kTellSegments, [&](wire::Reader& body) { told = wire::get_segments(body); });
  py::list result;
  for (const auto& segment : told) {
    result.append(py::dict("identity"_a = segment.identity, "times"_a = segment.times, "calls"_a = segment.calls, "allocations"_a = segment.allocations,
                           "words"_a = segment.words, "varying"_a = segment.varying, "births"_a = segment.births, "frees"_a = segment.frees,
                           "tier"_a = static_cast<int>(segment.standing.tier), "why"_a = segment.standing.why));
  }
  return result;
}

py::dict work_of(const wire::Work& work) { return py::dict("calls"_a = work.calls, "ns"_a = work.ns); }

py::dict plan_of(const wire::GangPlan& plan) {
  py::list weights, considered;
  for (const auto& one : plan.weights) {
    weights.append(py::dict("operator"_a = one.op, "sizes"_a = one.sizes, "count"_a = one.count, "bytes"_a = one.bytes, "rows_of"_a = one.rows_of));
  }
  for (const auto& one : plan.considered) {
    considered.append(py::dict("layout"_a = static_cast<int>(one.layout), "step_ns"_a = one.step_ns, "bytes"_a = one.bytes));
  }
  py::object pipeline = py::none();
  if (const auto& one = plan.pipeline) {
    pipeline = py::dict("serves"_a = one->serves, "parts"_a = one->parts, "step_ns"_a = one->step_ns, "bytes"_a = one->bytes, "stages"_a = one->stages, "rows"_a = one->rows);
  }
  return py::dict("layout"_a = static_cast<int>(plan.layout), "room_bytes"_a = plan.room_bytes, "weights"_a = weights, "considered"_a = considered,
                  "steps"_a = plan.steps, "step_ns"_a = plan.step_ns, "bytes"_a = plan.bytes, "pipeline"_a = pipeline);
}

py::dict gang_work(int device) {
  wire::GangWork told;
  auto& stream = stream_of(device);
  if (stream.connected()) stream.ask_aside(wire::Command::kTellGang, [&](wire::Reader& body) { told = wire::get_gang_work(body); });
  py::list alone;
  for (const auto& lone : told.alone) {
    alone.append(py::dict("operator"_a = lone.op, "reason"_a = static_cast<int>(lone.reason), "calls"_a = lone.work.calls, "ns"_a = lone.work.ns));
  }
  return py::dict("devices"_a = told.devices, "divided"_a = work_of(told.divided), "copies"_a = work_of(told.copies), "alone"_a = alone,
                  "plan"_a = told.plan ? py::object(plan_of(*told.plan)) : py::none());
}

py::list end_profile_for_python() {
  py::list result;
  for (const auto& total : end_profile()) {
    result.append(py::dict("device"_a = static_cast<int>(total.device), "activity"_a = total.activity, "subject"_a = total.subject,
                           "line"_a = total.line, "function"_a = total.function, "count"_a = total.count, "bytes"_a = total.bytes,
                           "ns"_a = total.ns, "longest_ns"_a = total.longest_ns));
  }
  return result;
}

// An argument is a tensor, or a number's bits.
std::vector<LaunchArgument> launch_arguments(const py::sequence& arguments) {
  std::vector<LaunchArgument> result;
  for (const auto& argument : arguments) {
    const bool is_tensor = THPVariable_Check(argument.ptr());
    result.push_back(is_tensor ? LaunchArgument{THPVariable_Unpack(argument.ptr()), 0} : LaunchArgument{at::Tensor(), argument.cast<uint64_t>()});
  }
  return result;
}

py::object define_kernel_for_python(uint64_t kernel, const py::bytes& source, int device) {
  const auto refusal = forebay::define_kernel(stream_of(device), kernel, source);
  return refusal ? py::object(py::make_tuple(static_cast<int>(refusal->code), refusal->why)) : py::none();
}

void resize(const py::handle& storage, int64_t bytes) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage.ptr()), "resize_storage() takes a torch.UntypedStorage");
  resize_storage(THPStorage_Unpack(storage.ptr()), bytes);
}

py::tuple reported_checkpoints(uint64_t held, int device) {
  const auto reported = Checkpoints(stream_of(device)).reported(held);
  py::dict there;
  for (const auto& one : reported.there) there[py::int_(one.number)] = one.is_present;
  return py::make_tuple(there, reported.why_dropped);
}

py::dict go_back(uint64_t number, int device) {
  const auto went = Checkpoints(stream_of(device)).go_back(number);
  return py::dict("changed"_a = went.changed, "storages"_a = went.storages, "resized"_a = went.resized);
}

// 0: none of a virtual device's, or its session is lost.
uint64_t storage_number(const at::TensorBase& tensor) {
  if (!tensor.is_cuda() || !tensor.has_storage()) return 0;
  try {
    return handle_of(*tensor.unsafeGetTensorImpl()).id;
  } catch (const c10::Error&) {
    return 0;
  }
}

// Going back writes to tensors in place, behind autograd's back: it is to refuse what it had kept of them.
void note_writes(const py::list& objects, const std::optional<std::unordered_set<uint64_t>>& storages, int device) {
  auto* tensors = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  for (const auto& object : objects) {
    if (!PyType_IsSubtype(Py_TYPE(object.ptr()), tensors)) continue;
    const auto& tensor = THPVariable_Unpack(object.ptr());
    if (!tensor.defined() || !tensor.is_cuda() || tensor.get_device() != device || tensor.is_inference()) continue;
    if (!storages || storages->count(storage_number(tensor)) != 0) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// As torch.distributed.ProcessGroupNCCL, whose place it takes.
void bind_process_group(py::module& module) {
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>> group(module, "ProcessGroup");
  py::class_<ProcessGroup::Options, c10d::Backend::Options, c10::intrusive_ptr<ProcessGroup::Options>>(module, "ProcessGroupOptions", py::dynamic_attr())
      .def(py::init([] { return c10::make_intrusive<ProcessGroup::Options>(); }));
  group.def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const c10::intrusive_ptr<ProcessGroup::Options>& options) {
              return c10::make_intrusive<ProcessGroup>(store, rank, size, options);
            }),
            "store"_a, "rank"_a, "size"_a, "options"_a);
  group.def("_set_default_timeout", &ProcessGroup::setTimeout, "timeout"_a);
  group.def("_options", [](ProcessGroup& self) { return self.getBackendOptions(); });
}

// Where a session may go back to (stream/checkpoints.h).
void bind_checkpoints(py::module& module) {
  const auto device = py::arg("device") = 0;
  module.def("take_checkpoint", [](uint64_t number, bool is_named, int index) { return Checkpoints(stream_of(index)).take(number, is_named); },
             py::arg("number"), py::arg("is_named"), device);
  module.def("keeps_checkpoints", [](int index) { return stream_of(index).worker().keeps_checkpoints.load(); }, device);
  module.def("dropped_checkpoints", [](int index) { return Checkpoints(stream_of(index)).were_dropped(); }, device);
  module.def("reported_checkpoints", &reported_checkpoints, py::arg("held"), device);
  module.def("begin_fork", &Forks::begin, py::arg("number"));
  module.def("fork_checkpoint", [](int index) { return Forks(stream_of(index)).taken(); }, device);
  module.def("fork_origin", [](int index) { return Forks(stream_of(index)).origin(); }, device);
  module.def("drop_checkpoint", [](uint64_t number, int index) { Forks(stream_of(index)).drop(number); }, py::arg("number"), device);
  module.def("has_run_backward", &has_run_backward);
  module.def("restart_backwards", &restart_backwards);
  module.def("go_back", &go_back, py::arg("number"), device);
  module.def("storage_number", [](const at::Tensor& tensor) { return storage_number(tensor); }, py::arg("tensor"));
  module.def("note_writes", &note_writes, py::arg("objects"), py::arg("storages"), py::arg("device"));
}

}  // namespace
}  // namespace forebay

PYBIND11_MODULE(_C, module) {
  using forebay::CommandStream, forebay::of_device, forebay::stream_of;
  const auto device = py::arg("device") = 0;
  forebay::bind_process_group(module);
  forebay::bind_checkpoints(module);
  module.attr("DEVICES_MAX") = static_cast<int>(forebay::kDevicesMax);
  module.def("install", &forebay::install, py::arg("devices") = 1);
  module.def("withdraw", &forebay::withdraw_devices);
  module.def("device_count", [] { return static_cast<int>(forebay::device_count()); });
  module.def("current_device", [] { return static_cast<int>(forebay::current_device()); });
  module.def("set_device", [](int index) { forebay::set_current_device(static_cast<c10::DeviceIndex>(index)); });
  module.def("set_lease_callback", &forebay::set_lease_callback);
  module.def("set_cut_callback", &forebay::set_cut_callback);
  module.def("connect", &forebay::connect, py::arg("address"), py::arg("ticket"), device, py::arg("meeting") = py::none(), py::arg("certificate") = "",
             py::arg("authorization") = "", py::arg("proxy") = "", py::arg("proxy_authorization") = "");
  module.def("open_known_calls", [](const std::string& path) { forebay::KnownCalls::get().open(path); }, py::arg("path"));
  module.def("save_known_calls", [] { forebay::KnownCalls::get().save(); });
  module.def("connected", of_device(&CommandStream::connected), device);
  module.def("lease_opened", of_device(&CommandStream::open_lease), py::arg("epoch"), py::arg("memory_bytes"), device);
  module.def("lease_closed", [](int index) { stream_of(index).lease().close(); }, device);
  module.def("mark", of_device(&CommandStream::mark), device);
  module.def("synchronize", of_device(&CommandStream::synchronize), device);
  module.def("lose", of_device(&CommandStream::lose), py::arg("message"), device);
  module.def("leave", [](int index) { return forebay::Handover(stream_of(index)).leave(); }, device);
  module.def("set_journal", of_device(&CommandStream::set_journal), py::arg("bytes_max"), py::arg("image_seconds"), device);
  module.def("is_torn", [](int index) { return forebay::Handover(stream_of(index)).is_torn(); }, device);
  module.def("break_off", [](int index) { return forebay::Handover(stream_of(index)).break_off(); }, device);
  module.def("broken", [](int index) { return stream_of(index).session().broken.load(); }, device);
  module.def("replay_differences", [](int index) { return forebay::Handover(stream_of(index)).differences(); }, device);
  module.def("settle_backwards", [](double seconds) { return forebay::settle_backwards(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3))); },
             py::arg("seconds"), py::call_guard<py::gil_scoped_release>());
  module.def("memory", &forebay::memory, device);
  module.def("resize_storage", &forebay::resize);
  module.def("define_kernel", &forebay::define_kernel_for_python, py::arg("kernel"), py::arg("source"), device);
  module.def(
      "launch_kernel",
      [](uint64_t kernel, const py::bytes& source, const std::array<uint64_t, 3>& grid, const py::sequence& arguments, int index) {
        forebay::launch_kernel(stream_of(index).device(), kernel, source, grid, forebay::launch_arguments(arguments));
      },
      py::arg("kernel"), py::arg("source"), py::arg("grid"), py::arg("arguments"), device);
  module.def("pin_memory", &forebay::pin_memory, py::arg("address"), py::arg("bytes"));
  module.def("unpin_memory", &forebay::unpin_memory, py::arg("address"));
  module.def("reset_peak_memory", [](int index) { forebay::reset_peak_memory(stream_of(index).device()); }, device);
  module.def("set_memory_fraction", [](double fraction, int64_t bytes, int index) { forebay::set_memory_fraction(stream_of(index).device(), fraction, bytes); },
             py::arg("fraction"), py::arg("bytes"), device);
  module.def("memory_fraction", [](int index) { return forebay::memory_fraction(stream_of(index).device()); }, device);
  module.def("tell_flavor", [](const std::string& name, int64_t bytes, int index) { forebay::publish_flavor(stream_of(index).device(), name, bytes); },
             py::arg("name"), py::arg("bytes"), device);
  module.def("held_ns", [](int index) { return forebay::held_ns(stream_of(index).device()); }, device);
  module.def("lease_is_open", [](int index) { return forebay::lease_is_open(stream_of(index).device()); }, device);
  module.def("withdraw_publication", &forebay::withdraw_publication);
  module.def("recorded", [] { return forebay::recorded(); });
  module.def("device_times", [] { return py::capsule(&forebay::device_times(), "forebay.device_times"); });
  module.def("device_table", [] { return py::capsule(&forebay::device_table(), forebay::kDeviceTableName); });
  module.def("answer_callbacks", &forebay::answer_callbacks, py::arg("answer"));
  module.def("is_processor", [](int index) {
    stream_of(index).lease().need();
    return stream_of(index).worker().is_cpu.load();
  }, device);
  module.def("begin_profile", &forebay::begin_profile);
  module.def("end_profile", &forebay::end_profile_for_python);
  module.def("statistics", &forebay::statistics, device);
  module.def("segments", &forebay::segments, device);
  module.def("gang_work", &forebay::gang_work, device);
  module.def(
      "default_generator", [](int index) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(forebay::default_generator(stream_of(index).device()))); }, device);
}
