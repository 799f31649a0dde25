// c10's guard for CUDA devices: one virtual device, whose one stream is in order.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "registration.h"
#include "stream.h"

namespace forebay {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    check(device);
    return device_;
  }
  c10::Device getDevice() const override { return device_; }
  void setDevice(c10::Device device) const override { check(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { CommandStream::get().synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { CommandStream::get().synchronize(); }

  // With one stream in order, an event has happened for every later command as soon as it is recorded.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = const_cast<Guard*>(this);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { CommandStream::get().synchronize(); }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static void check(c10::Device device) {
    TORCH_CHECK(device.is_cuda() && device.index() <= 0, "there is one virtual device, cuda:0; ", device, " does not exist");
  }
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, device_); }

  c10::Device device_{c10::kCUDA, 0};
};

}  // namespace

void install_guard() {
  static const auto* guard = new Guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, guard);
}

}  // namespace forebay
