// forebay._kineto: PyTorch's profiler gets the times of the devices' calls as those of kernels. An extension of its own, which links to nothing of
// _C: where a build of PyTorch lacks what it needs, it cannot be loaded, and a profile shows the host's side alone.
#include <libkineto.h>
#include <output_base.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recorder/device_times.h"

namespace py = pybind11;

namespace forebay {
namespace {

using libkineto::ActivityType;

constexpr char kCapsule[] = "forebay.device_times";

bool wanted = false;  // guarded by the GIL: what is prepared next is to have the devices' times

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(DeviceTimes& times) : times_(times) {}

  void start() override {
    times_.begin();
    running_ = true;
  }
  void stop() override {
    if (std::exchange(running_, false)) found_ = times_.end();
  }
  ~Session() override {
    if (running_) times_.end();
  }

  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start, int64_t end) override;

  // Kineto asks for one; a trace shows other devices by their numbers.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "cuda:0", "virtual device"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {{0, 0, 0, "calls"}}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { times_.push(id); }
  void popCorrelationId() override { times_.pop(); }

 private:
  DeviceTimes& times_;
  bool running_ = false;
  std::vector<DeviceTime> found_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

void Session::processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start, int64_t end) {
  buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
  buffer_->span = libkineto::TraceSpan(start, end, "forebay");
  buffer_->gpuOpCount = static_cast<int>(found_.size());
  for (const auto& time : found_) {
    buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, time.name);
    auto& activity = libkineto::CpuTraceBuffer::toRef(buffer_->activities.back());
    activity.startTime = time.start_ns;
    activity.endTime = time.end_ns;
    activity.id = static_cast<int32_t>(time.correlation);
    activity.device = time.device;
    activity.resource = 0;  // its stream
    activity.linked = time.correlation == 0 ? nullptr : linked(static_cast<int32_t>(time.correlation));
    activity.log(logger);
  }
  found_.clear();
}

class Profiler final : public libkineto::IActivityProfiler {
 public:
  explicit Profiler(DeviceTimes& times) : times_(times) {}
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>&, const libkineto::Config&) override {
    return wanted ? std::make_unique<Session>(times_) : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types, const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  DeviceTimes& times_;
  const std::string name_ = "forebay";
  const std::set<ActivityType> activities_{ActivityType::CONCURRENT_KERNEL};
};

void install(const py::capsule& capsule) {
  auto* times = static_cast<DeviceTimes*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  if (times == nullptr) throw py::error_already_set();
  libkineto::api().registerProfilerFactory([times] { return std::make_unique<Profiler>(*times); });
}

}  // namespace
}  // namespace forebay

PYBIND11_MODULE(_kineto, module) {
  module.def("install", &forebay::install, py::arg("times"));
  module.def("want", [](bool wanted) { forebay::wanted = wanted; }, py::arg("wanted"));
}
