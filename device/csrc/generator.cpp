#include "generator.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "devices.h"

namespace forebay {
namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);  // seed, counter: as long as a CUDA generator's state

}  // namespace

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)), seed_(c10::default_rng_seed_val) {}

std::pair<uint64_t, uint64_t> VirtualGenerator::next() {
  const std::lock_guard lock(mutex_);
  return {seed_, counter_++};
}

void VirtualGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  counter_ = 0;
}
void VirtualGenerator::set_offset(uint64_t offset) { counter_ = offset; }
uint64_t VirtualGenerator::get_offset() const { return counter_; }
uint64_t VirtualGenerator::current_seed() const { return seed_; }

uint64_t VirtualGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return seed_;
}

void VirtualGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "the state of a cuda generator has ", kStateBytes, " bytes, not ", state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&counter_, bytes + sizeof(seed_), sizeof(counter_));
}

c10::intrusive_ptr<c10::TensorImpl> VirtualGenerator::get_state() const {
  auto state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = state.data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &counter_, sizeof(counter_));
  return state.getIntrusivePtr();
}

VirtualGenerator* VirtualGenerator::clone_impl() const {
  auto* copy = new VirtualGenerator(device().index());
  copy->seed_ = seed_;
  copy->counter_ = counter_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* list = new std::vector<at::Generator>;
    for (c10::DeviceIndex index = 0; index < kDevicesMax; ++index) list->push_back(at::make_generator<VirtualGenerator>(index));
    return list;
  }();
  return generators->at(static_cast<size_t>(device));
}

}  // namespace forebay
