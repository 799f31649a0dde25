// What TensorFlow finds of this package: it loads each library in the folder tensorflow-plugins beside it.
#include "device.h"
#include "host_notes.h"
#include "kernels.h"
#include "placement.h"
#include "tensorflow/compiler/jit/flags.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace forebay::tf {
namespace {

void begin() {
  tensorflow::GetXlaOpsCommonFlags()->tf_xla_use_device_api.enabled_for_all_ = true;
  tensorflow::XlaOpRegistry::DeviceRegistration compiled;
  compiled.compilation_device_name = tensorflow::DEVICE_CPU_XLA_JIT;
  compiled.autoclustering_policy = tensorflow::XlaOpRegistry::AutoclusteringPolicy::kIfExplicitlyRequested;
  tensorflow::XlaOpRegistry::RegisterCompilationDevice(kType, compiled);
  tensorflow::XlaOpRegistry::RegisterCompilationKernels();
  register_kernels();
  register_placement();
  register_host_notes();
  register_devices();
}

}  // namespace
}  // namespace forebay::tf

// TensorFlow calls this once, when it has loaded the library.
extern "C" __attribute__((visibility("default"))) void TF_InitKernel() { forebay::tf::begin(); }
