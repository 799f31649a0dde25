// c10's guard for CUDA devices: the virtual devices, each with one stream, which is in order.
#include "runtime/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

#include "base/devices.h"
#include "stream/stream.h"

namespace forebay {
namespace {

// One that measures time waits for the work before it when it is recorded, as torch.cuda.Event here.
struct Event {
  CommandStream* stream = nullptr;
  std::chrono::steady_clock::time_point at;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device_named(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getStream(c10::Device device) const override { return stream_of(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return stream_of(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream_of(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream_of(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override { CommandStream::of(stream.device_index()).synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    CommandStream::of(device_named(c10::Device(c10::kCUDA, device))).synchronize();
  }

  // With one stream in order, an event has happened for every later command of its device as soon as it is recorded. Another
  // device sees nothing of it but what is copied, and a copy waits.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event;
    auto& recorded = *static_cast<Event*>(*event);
    recorded.stream = &CommandStream::of(stream.device_index());
    if (flag != c10::EventFlag::BACKEND_DEFAULT) return;
    recorded.stream->synchronize();
    recorded.at = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override { static_cast<Event*>(event)->stream->synchronize(); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(second)->at - static_cast<Event*>(first)->at).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static c10::Stream stream_of(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, device_named(device))); }
};

}  // namespace

void install_guard() {
  static const auto* guard = new Guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, guard);
}

}  // namespace forebay
