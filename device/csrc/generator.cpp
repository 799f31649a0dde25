#include "generator.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "devices.h"

namespace forebay {
namespace {

constexpr size_t kRandomCallsMax = 16384;  // more than a program is ahead of its worker
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);  // seed, counter: as long as a CUDA generator's state

}  // namespace

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)), seed_(c10::default_rng_seed_val) {}

std::pair<uint64_t, uint64_t> VirtualGenerator::next() {
  const std::lock_guard lock(mutex_);
  return {seed_, counter_++};
}

void VirtualGenerator::take_back(uint64_t seed, uint64_t counter) {
  const std::lock_guard lock(mutex_);
  if (seed_ == seed && counter_ == counter + 1) counter_ = counter;
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

void RandomCalls::note(uint64_t sequence, VirtualGenerator& generator, uint64_t counter) {
  if (calls_.size() == kRandomCallsMax) calls_.pop_front();
  auto kept = c10::intrusive_ptr<VirtualGenerator>::reclaim_copy(&generator);
  calls_.push_back({sequence, c10::weak_intrusive_ptr<VirtualGenerator>(kept), generator.current_seed(), counter});
}

void RandomCalls::take_back_from(uint64_t sequence) {
  for (; !calls_.empty() && calls_.back().sequence >= sequence; calls_.pop_back()) {
    const Call& call = calls_.back();
    if (const auto generator = call.generator.lock()) generator->take_back(call.seed, call.counter);
  }
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
