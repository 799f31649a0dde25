// The virtual device's random generator: a seed and a count of the random calls made with it, nothing more. Generators may share them.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "base/leaf_mutex.h"

namespace forebay {

class RandomState {
 public:
  struct Place {
    uint64_t seed;
    uint64_t counter;
    bool operator==(const Place&) const = default;
  };

  explicit RandomState(Place place) : place_(place) {}

  Place get() const;
  void set(Place place);
  // The place of the next random call, which this counts.
  Place next();
  // The call that had this place, the last one, has not come about.
  void take_back(Place place);

 private:
  mutable LeafMutex mutex_;
  Place place_;
};

class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(c10::DeviceIndex device);
  VirtualGenerator(c10::DeviceIndex device, std::shared_ptr<RandomState> state);

  static c10::DeviceType device_type() { return c10::kCUDA; }

  const std::shared_ptr<RandomState>& state() const { return state_; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Shares the other's state from now on.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  VirtualGenerator* clone_impl() const override;

  std::shared_ptr<RandomState> state_;
};

// The last random calls of a device: what they drew is given back where a failure kept them from coming about.
class RandomCalls {
 public:
  void note(uint64_t sequence, const std::shared_ptr<RandomState>& state, RandomState::Place place);
  // The call of this number and all after it have not come about.
  void take_back_from(uint64_t sequence);
  void clear() { calls_.clear(); }

 private:
  struct Call {
    uint64_t sequence;
    std::weak_ptr<RandomState> state;
    RandomState::Place place;
  };
  std::deque<Call> calls_;
};

// Of `cuda:<device>`.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace forebay
