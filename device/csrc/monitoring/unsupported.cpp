// Functions of NVIDIA's management library for what no virtual device has, or what the physical one behind it has, which changes from lease to
// lease: temperature, power, clocks, fans, links, partitions, settings. All answer NVML_ERROR_NOT_SUPPORTED, whatever they are given.
#define UNSUPPORTED(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 3; }

#include "unsupported.inc"
