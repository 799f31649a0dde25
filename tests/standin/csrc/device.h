// The stand-in as PyTorch's accelerator: which device and stream are current, and where tensors' memory comes from.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <utility>

namespace standin {

// Of this thread.
int current_device();
void set_current_device(int device);
// The runtime's number of the stream that is current for the device in this thread.
int current_stream(int device);

int stream_number(const c10::Stream& stream);
c10::Stream stream_of(int number);

// Draws depend on (seed, offset) alone; each random operator takes the next offset at its call.
class StandinGenerator final : public c10::GeneratorImpl {
 public:
  explicit StandinGenerator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // What a generator on the host is seeded with for the next operator.
  uint64_t next();

 private:
  StandinGenerator* clone_impl() const override;
  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace standin
