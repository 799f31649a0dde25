// The stand-in as PyTorch's accelerator: which device and stream are current, and where tensors' memory comes from.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace standin {

// Of this thread.
int current_device();
void set_current_device(int device);
// The runtime's number of the stream that is current for the device in this thread.
int current_stream(int device);

int stream_number(const c10::Stream& stream);
c10::Stream stream_of(int number);

// What a random operator's generator on the host is seeded with: now, or of a graph before each time that it is carried out.
struct Draw {
  uint64_t seed = 0;
  std::shared_ptr<std::atomic<uint64_t>> cell{};
  uint64_t operator()() const { return cell ? cell->load() : seed; }
};

// What generators may share. `cell`: of one that a graph draws from.
struct GeneratorState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::shared_ptr<std::atomic<uint64_t>> cell{};
  bool drawn = false;  // the cell is some operator's
  uint64_t next();
};

// Draws depend on (seed, offset) alone; each random operator takes the next offset at its call.
class StandinGenerator final : public c10::GeneratorImpl {
 public:
  explicit StandinGenerator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { state_->offset = offset; }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  const std::shared_ptr<GeneratorState>& state() const { return state_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // For the next operator. `recorded`: into a graph, whose generators alone may be drawn from then, once each. Throws c10::Error.
  Draw next(bool recorded);

 private:
  StandinGenerator* clone_impl() const override;
  std::shared_ptr<GeneratorState> state_;
};

const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace standin
