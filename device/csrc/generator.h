// The virtual device's random generator: a seed and a count of the random calls made with it, nothing more.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <deque>
#include <utility>

namespace forebay {

class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(c10::DeviceIndex device);

  static c10::DeviceType device_type() { return c10::kCUDA; }

  // (seed, counter) of the next random call, which this counts.
  std::pair<uint64_t, uint64_t> next();
  // The call that had this counter, the last one, has not come about.
  void take_back(uint64_t seed, uint64_t counter);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  VirtualGenerator* clone_impl() const override;

  uint64_t seed_;
  uint64_t counter_ = 0;
};

// The last random calls of a device: what they drew is given back where a failure kept them from coming about.
class RandomCalls {
 public:
  void note(uint64_t sequence, VirtualGenerator& generator, uint64_t counter);
  // The call of this number and all after it have not come about.
  void take_back_from(uint64_t sequence);
  void clear() { calls_.clear(); }

 private:
  struct Call {
    uint64_t sequence;
    c10::weak_intrusive_ptr<VirtualGenerator> generator;
    uint64_t seed;
    uint64_t counter;
  };
  std::deque<Call> calls_;
};

// Of `cuda:<device>`.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace forebay
