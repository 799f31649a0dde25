#include "device.h"

#include <dlfcn.h>

#include <atomic>

#include "front.h"
#include "tensorflow/compiler/jit/pjrt_base_device.h"
#include "tensorflow/compiler/jit/pjrt_device_context.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/tfrt/common/async_value_tensor.h"
#include "tensorflow/core/tfrt/common/pjrt_util.h"
#include "xla/pjrt/c_api_client/pjrt_c_api_client.h"

namespace forebay::tf {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DeviceContext;
using tensorflow::PjRtBaseDevice;
using tensorflow::SessionOptions;
using tensorflow::Tensor;

std::atomic<bool> is_any_made = false;

constexpr int kPriority = 220;  // above TensorFlow's GPU, 210

class VirtualDevice : public PjRtBaseDevice {
 public:
  VirtualDevice(const SessionOptions& session, const Options& options) : PjRtBaseDevice(session, options) {
    const_cast<tensorflow::DeviceAttributes&>(attributes()).set_device_type(kType);  // the constructor knows one word for name and type
    context_.reset(new tensorflow::PjRtDeviceContext(options.shape_determination_fns.at(0)));
    info_.default_context = context_.get();
    set_tensorflow_accelerator_device_info(&info_);
  }

  tensorflow::Allocator* GetAllocator(AllocatorAttributes where) override { return where.on_host() ? tensorflow::cpu_allocator() : &allocator_; }
  // Programs are not waited for before something is read: what failed is told there.
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status TryGetDeviceContext(DeviceContext** context) override {
    *context = context_.get();
    context_->Ref();
    return absl::OkStatus();
  }
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto, AllocatorAttributes where, Tensor* made) override {
    Tensor parsed(proto.dtype());
    if (!parsed.FromProto(tensorflow::cpu_allocator(), proto)) return absl::InvalidArgumentError("a constant cannot be read");
    if (where.on_host()) {
      *made = parsed;
      return absl::OkStatus();
    }
    Tensor copy(&allocator_, parsed.dtype(), parsed.shape());
    const auto copied = context_->CopyCPUTensorToDeviceSync(&parsed, this, &copy);
    if (copied.ok()) *made = copy;
    return copied;
  }

 private:
  tensorflow::AsyncValueAllocator allocator_;  // of handles of buffers
  tensorflow::core::RefCountPtr<DeviceContext> context_;
  AcceleratorDeviceInfo info_;
};

absl::StatusOr<const PJRT_Api*> load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* get = library == nullptr ? nullptr : dlsym(library, "GetPjrtApi");
  if (get == nullptr) return absl::InternalError(dlerror());
  return reinterpret_cast<const PJRT_Api* (*)()>(get)();
}

// TensorFlow keeps one client of a type for good, also where it makes its devices anew.
absl::Status make_client(const Front& front) {
  const tensorflow::DeviceType type(kType);
  if (tensorflow::GetPjRtClient(type).ok()) return absl::OkStatus();
  const auto api = load(front.plugin);
  if (!api.ok()) return api.status();
  auto client = xla::WrapClientAroundCApi(*api, {{"table", front.table}});
  return client.ok() ? tensorflow::SetPjRtClientInTFGlobalResourceManager(type, *std::move(client)) : client.status();
}

class Factory : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    const auto front = ask_front();
    if (!front.ok()) return front.status();
    for (int id = 0; id < front->devices; ++id) devices->push_back(absl::StrCat("/physical_device:", kName, ":", id));
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const SessionOptions& session, const std::string& prefix, std::vector<std::unique_ptr<tensorflow::Device>>* devices) override {
    const auto front = ask_front();
    if (!front.ok()) return front.status();
    int count = front->devices;
    const auto& wanted = session.config.device_count();
    if (const auto found = wanted.find(kName); found != wanted.end()) count = std::min(count, found->second);
    if (count == 0) return absl::OkStatus();
    if (const auto made = make_client(*front); !made.ok()) return made;
    is_any_made = true;
    for (int id = 0; id < count; ++id) {
      const PjRtBaseDevice::Options options(prefix, kName, id, tensorflow::DEVICE_CPU_XLA_JIT, {tensorflow::XlaShapeLayoutHelpers::ShapeDeterminationFns{}});
      devices->push_back(std::make_unique<VirtualDevice>(session, options));
    }
    return absl::OkStatus();
  }
};

}  // namespace

// As a pluggable device: of no other but CUDA's does TensorFlow copy tensors between the host's memory and the device's where kernels differ in that.
void register_devices() { tensorflow::DeviceFactory::Register(kType, std::make_unique<Factory>(), kPriority, true); }

bool are_devices_made() { return is_any_made; }

}  // namespace forebay::tf
