// The virtual device as TensorFlow has it: named GPU:0, of a type of its own.
#pragma once

namespace forebay::tf {

// Kernels are registered for this type. TensorFlow takes special ways, of CUDA, for devices of the type GPU; the name decides what a program sees.
constexpr char kType[] = "FOREBAY";
constexpr char kName[] = "GPU";

// Has TensorFlow ask for the devices when it starts.
void register_devices();

// Whether TensorFlow has asked for them, and there are some.
bool are_devices_made();

}  // namespace forebay::tf
