#include "base/generator.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/devices.h"

namespace forebay {
namespace {

constexpr size_t kRandomCallsMax = 16384;  // more than a program is ahead of its worker
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);  // seed, counter: as long as a CUDA generator's state

}  // namespace

RandomState::Place RandomState::get() const {
  const std::lock_guard lock(mutex_);
  return place_;
}

void RandomState::set(Place place) {
  const std::lock_guard lock(mutex_);
  place_ = place;
}

RandomState::Place RandomState::next() {
  const std::lock_guard lock(mutex_);
  const Place place = place_;
  ++place_.counter;
  return place;
}

void RandomState::take_back(Place place) {
  const std::lock_guard lock(mutex_);
  if (place_ == Place{place.seed, place.counter + 1}) place_ = place;
}

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device)
    : VirtualGenerator(device, std::make_shared<RandomState>(RandomState::Place{c10::default_rng_seed_val, 0})) {}

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device, std::shared_ptr<RandomState> state)
    : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)), state_(std::move(state)) {}

void VirtualGenerator::set_current_seed(uint64_t seed) { state_->set({seed, 0}); }
void VirtualGenerator::set_offset(uint64_t offset) { state_->set({current_seed(), offset}); }
uint64_t VirtualGenerator::get_offset() const { return state_->get().counter; }
uint64_t VirtualGenerator::current_seed() const { return state_->get().seed; }

uint64_t VirtualGenerator::seed() {
  const uint64_t drawn = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(drawn);
  return drawn;
}

void VirtualGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "the state of a cuda generator has ", kStateBytes, " bytes, not ", state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  RandomState::Place place{};
  std::memcpy(&place.seed, bytes, sizeof(place.seed));
  std::memcpy(&place.counter, bytes + sizeof(place.seed), sizeof(place.counter));
  state_->set(place);
}

c10::intrusive_ptr<c10::TensorImpl> VirtualGenerator::get_state() const {
  const auto state = at::detail::empty_cpu({kStateBytes}, at::kByte);  // past the dispatcher, whose modes may give tensors without content
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  const auto place = state_->get();
  std::memcpy(bytes, &place.seed, sizeof(place.seed));
  std::memcpy(bytes + sizeof(place.seed), &place.counter, sizeof(place.counter));
  return state.getIntrusivePtr();
}

void VirtualGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto generator = c10::dynamic_intrusive_pointer_cast<VirtualGenerator>(other);
  TORCH_CHECK(generator, "Expected a CUDA Generator");
  state_ = generator->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> VirtualGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<VirtualGenerator>(device().index(), state_);
}

VirtualGenerator* VirtualGenerator::clone_impl() const { return new VirtualGenerator(device().index(), std::make_shared<RandomState>(state_->get())); }

void RandomCalls::note(uint64_t sequence, const std::shared_ptr<RandomState>& state, RandomState::Place place) {
  if (calls_.size() == kRandomCallsMax) calls_.pop_front();
  calls_.push_back({sequence, state, place});
}

void RandomCalls::take_back_from(uint64_t sequence) {
  for (; !calls_.empty() && calls_.back().sequence >= sequence; calls_.pop_back()) {
    const Call& call = calls_.back();
    if (const auto state = call.state.lock()) state->take_back(call.place);
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
