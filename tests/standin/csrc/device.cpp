#include "device.h"

#include <torch/csrc/Generator.h>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime.h"

namespace standin {

namespace {

constexpr uint64_t kOffsetPerOperator = 4;  // as PyTorch wants of Philox

thread_local int device_now = 0;
thread_local std::array<int, kDevicesMax> streams_now{};  // numbers within the device

int checked(int device) {
  TORCH_CHECK(device >= 0 && device < Runtime::get().settings().devices, "standin: there is no device ", device);
  return device;
}

int index_or_current(c10::Device device) { return device.has_index() ? checked(device.index()) : device_now; }

c10::Device device_at(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

EventRef& event_of(void* handle) { return *static_cast<EventRef*>(handle); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int before = std::exchange(device_now, index_or_current(device));
    return device_at(before);
  }
  c10::Device getDevice() const override { return device_at(device_now); }
  void setDevice(c10::Device device) const override { device_now = index_or_current(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_now = device.has_index() ? device.index() : device_now; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(Runtime::get().settings().devices); }

  c10::Stream getStream(c10::Device device) const override { return stream_of(current_stream(index_or_current(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_or_current(device) * kStreamsPerDevice); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<int> turn{0};
    return stream_of(index_or_current(device) * kStreamsPerDevice + 1 + turn++ % (kStreamsPerDevice - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int device = checked(stream.device_index());
    const int before = std::exchange(streams_now[static_cast<size_t>(device)], static_cast<int>(stream.id()));
    return stream_of(device * kStreamsPerDevice + before);
  }
  bool queryStream(const c10::Stream& stream) const override { return Runtime::get().query(stream_number(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { Runtime::get().synchronize(stream_number(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { Runtime::get().synchronize_device(checked(device)); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventRef(std::make_shared<Event>());
    event_of(*event) = std::make_shared<Event>();  // what waits for the event as it was still does
    Runtime::get().record(event_of(*event), stream_number(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Runtime::get().wait(event_of(event), stream_number(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || Runtime::get().query(event_of(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Runtime::get().synchronize(event_of(event));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return Runtime::get().elapsed_milliseconds(event_of(from), event_of(to));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<EventRef*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Runtime::get().record_stream(data.get(), stream_number(stream));
  }
};

void release(void* address) {
  if (address != nullptr) Runtime::get().free(address);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto device = device_at(device_now);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    void* data = Runtime::get().allocate(device_now, bytes, current_stream(device_now));
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "standin: the host copies nothing on the device"); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { Runtime::get().empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { Runtime::get().record_stream(data.get(), stream_number(stream)); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Usage usage = Runtime::get().usage(checked(device));
    c10::CachingDeviceAllocator::DeviceStats statistics;
    auto& allocated = statistics.allocated_bytes[0];
    allocated.current = static_cast<int64_t>(usage.allocated);
    allocated.peak = static_cast<int64_t>(usage.allocated_max);
    statistics.reserved_bytes[0].current = static_cast<int64_t>(usage.allocated + usage.cached);
    return statistics;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const Usage usage = Runtime::get().usage(checked(device));
    const size_t all = Runtime::get().settings().memory_bytes;
    return {all - usage.allocated - usage.cached, all};
  }
};

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* data = Runtime::get().allocate_pinned(bytes);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // jobs hold what they use
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator pinned_allocator;

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(Runtime::get().settings().devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_now = checked(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(device_now); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(device_now, checked(device)));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned_address(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Device getDeviceFromPtr(void* data) const override { return device_at(checked(Runtime::get().device_of(data))); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<StandinGenerator>(device < 0 ? static_cast<c10::DeviceIndex>(device_now) : device);
  }
};

Allocator allocator;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
REGISTER_ALLOCATOR(c10::kPrivateUse1, &allocator)
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &pinned_allocator)

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  explain_faults();
  return true;
}();

}  // namespace

int current_device() { return device_now; }
void set_current_device(int device) { device_now = checked(device); }
int current_stream(int device) { return device * kStreamsPerDevice + streams_now[static_cast<size_t>(device)]; }
int stream_number(const c10::Stream& stream) { return checked(stream.device_index()) * kStreamsPerDevice + static_cast<int>(stream.id()); }
c10::Stream stream_of(int number) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(number / kStreamsPerDevice), number % kStreamsPerDevice);
}

uint64_t GeneratorState::next() {
  uint64_t value = seed * 0x9e3779b97f4a7c15 + offset;  // a finaliser of MurmurHash3 (Appleby, public domain)
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53;
  offset += kOffsetPerOperator;
  return value ^ (value >> 33);
}

StandinGenerator::StandinGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(device_at(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::make_shared<GeneratorState>(GeneratorState{c10::default_rng_seed_val})) {}

void StandinGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t StandinGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return state_->seed;
}

Draw StandinGenerator::next(bool recorded) {
  if (!recorded) return {state_->next()};
  TORCH_CHECK(state_->cell && !std::exchange(state_->drawn, true), "standin: a graph draws from a generator that is none of its own, or twice");
  return {0, state_->cell};
}

void StandinGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  state_ = static_cast<StandinGenerator&>(*other).state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> StandinGenerator::graphsafe_get_state() const {
  auto shared = c10::make_intrusive<StandinGenerator>(device().index());
  shared->state_ = state_;
  return shared;
}

void StandinGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 2 * sizeof(uint64_t), "standin: a generator's state has 16 bytes, not ", state.numel());
  const auto* words = static_cast<const uint64_t*>(state.data());
  state_->seed = words[0];
  state_->offset = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> StandinGenerator::get_state() const {
  auto state = at::empty({2 * sizeof(uint64_t)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const std::array<uint64_t, 2> words{state_->seed, state_->offset};
  std::memcpy(state.mutable_data_ptr(), words.data(), sizeof(words));
  return state.getIntrusivePtr();
}

StandinGenerator* StandinGenerator::clone_impl() const {
  auto* copy = new StandinGenerator(device().index());
  copy->state_->seed = state_->seed;
  copy->state_->offset = state_->offset;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* made = new std::array<at::Generator, kDevicesMax>;
    for (int index = 0; index < kDevicesMax; ++index) (*made)[static_cast<size_t>(index)] = at::make_generator<StandinGenerator>(static_cast<c10::DeviceIndex>(index));
    return made;
  }();
  return generators->at(static_cast<size_t>(device < 0 ? device_now : checked(device)));
}

}  // namespace standin

// What forebay_standin calls.
#define STANDIN_API extern "C" __attribute__((visibility("default")))

STANDIN_API int standin_device_count() { return standin::Runtime::get().settings().devices; }
STANDIN_API int standin_current_device() { return standin::current_device(); }
STANDIN_API void standin_set_device(int device) { standin::set_current_device(device); }
STANDIN_API size_t standin_memory_bytes() { return standin::Runtime::get().settings().memory_bytes; }
STANDIN_API size_t standin_allocated_bytes(int device) { return standin::Runtime::get().usage(device).allocated; }
STANDIN_API size_t standin_cached_bytes(int device) { return standin::Runtime::get().usage(device).cached; }
STANDIN_API void standin_set_limit(int device, size_t bytes) { standin::Runtime::get().set_limit(device, bytes); }
STANDIN_API void standin_seed(int device, uint64_t seed) {
  auto generator = standin::default_generator(static_cast<c10::DeviceIndex>(device));
  const std::lock_guard<std::mutex> guard(generator.mutex());
  generator.set_current_seed(seed);
}
STANDIN_API size_t standin_findings() { return standin::Runtime::get().findings().size(); }

// Graphs, and generators as Python has them. What fails is said in words that the caller frees; null where nothing does.
namespace {

struct PythonsGraph {
  standin::Graph graph;
  std::vector<std::shared_ptr<standin::GeneratorState>> generators;
};

char* failure_of(const std::function<void()>& run) {
  try {
    run();
    return nullptr;
  } catch (const c10::Error& error) {
    return ::strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return ::strdup(error.what());
  }
}

int stream_now() { return standin::current_stream(standin::current_device()); }

}  // namespace

STANDIN_API PyObject* standin_default_generator(int device) { return THPGenerator_Wrap(standin::default_generator(static_cast<c10::DeviceIndex>(device))); }
STANDIN_API void* standin_graph_new() { return new PythonsGraph; }
STANDIN_API void standin_graph_delete(PythonsGraph* graph) {
  standin::Runtime::get().release(graph->graph);
  delete graph;
}
STANDIN_API void standin_graph_register(PythonsGraph* graph, PyObject* generator) {
  const auto state = THPGenerator_Unwrap(generator).get<standin::StandinGenerator>()->state();
  state->cell = std::make_shared<std::atomic<uint64_t>>();
  graph->generators.push_back(state);
}
STANDIN_API char* standin_graph_begin(PythonsGraph* graph) {
  return failure_of([&] { standin::Runtime::get().begin_graph(stream_now(), &graph->graph); });
}
STANDIN_API char* standin_graph_end() {
  return failure_of([] { standin::Runtime::get().end_graph(stream_now()); });
}
STANDIN_API char* standin_graph_replay(PythonsGraph* graph) {
  std::vector<std::pair<std::shared_ptr<std::atomic<uint64_t>>, uint64_t>> draws;
  for (const auto& state : graph->generators) draws.emplace_back(state->cell, state->next());
  return failure_of([&] {
    standin::Runtime::get().replay(stream_now(), graph->graph, [draws] {
      for (const auto& [cell, value] : draws) cell->store(value);
    });
  });
}

// Kernels of programs, which Python interprets. `call` says 1 for an address that is none of the kernel's.
STANDIN_API char* standin_launch(int (*call)(size_t), size_t number, const void* const* addresses, size_t count) {
  return failure_of([&] {
    std::vector<standin::Range> ranges;
    for (size_t index = 0; index < count; ++index) {
      const auto range = standin::Runtime::get().allocation_at(addresses[index]);
      const bool is_new = std::none_of(ranges.begin(), ranges.end(), [&](const standin::Range& one) { return one.begin == range.begin; });
      if (range.bytes > 0 && is_new) ranges.push_back(range);
    }
    standin::Runtime::get().submit(stream_now(), "a kernel of the program", ranges, [call, number] {
      TORCH_CHECK(call(number) == 0, "standin: an illegal memory access was encountered");
    });
  });
}
STANDIN_API const void* standin_allocation(const void* address, size_t* bytes) {
  const auto range = standin::Runtime::get().allocation_at(address);
  *bytes = range.bytes;
  return reinterpret_cast<const void*>(range.begin);
}
STANDIN_API const void* standin_shadow(const void* address) { return standin::shadow_of(address); }
