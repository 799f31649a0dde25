// c10's guard for CUDA devices: the virtual devices, each with one stream, which is in order.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "devices.h"
#include "registration.h"
#include "stream.h"

namespace forebay {
namespace {

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
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = &CommandStream::of(stream.device_index());
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override { static_cast<CommandStream*>(event)->synchronize(); }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
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
