#include "device/device.h"

#include <array>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>

#include "base/memory.h"

namespace forebay::worker {

namespace {

constexpr int64_t kSerialCopyBytes = int64_t{4} << 20;  // waking other threads takes longer than they save

// An out-of-tree back end registers its name with PyTorch when it is imported.
c10::DeviceType type_of(const std::string& kind) {
  if (kind == "cpu" || kind == "null") return c10::kCPU;
  if (kind == "cuda" || kind == "hip") return c10::kCUDA;
  const bool extended = c10::is_privateuse1_backend_registered();
  if (extended && kind == c10::get_privateuse1_backend()) return c10::kPrivateUse1;
  throw std::invalid_argument("a device of kind \"" + kind + "\"; a worker knows cpu, cuda, hip and null" +
                              (extended ? ", and here " + c10::get_privateuse1_backend() : ""));
}

// Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014), as in java.util.SplittableRandom.
uint64_t splitmix(uint64_t& state) {
  uint64_t value = (state += 0x9e3779b97f4a7c15);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// PyTorch's own seeding keeps 32 bits of a seed; here both numbers reach all of the state.
at::mt19937 engine_of(uint64_t seed, uint64_t counter) {
  uint64_t state = splitmix(seed) ^ splitmix(counter) * 3;
  at::mt19937_data_pod data{};
  data.seed_ = seed;
  data.left_ = 1;
  data.seeded_ = true;
  data.next_ = 0;
  for (auto& word : data.state_) word = static_cast<uint32_t>(splitmix(state));
  at::mt19937 engine;
  engine.set_data(data);
  return engine;
}

constexpr uint64_t kPhiloxOffsetPerCall = uint64_t{1} << 28;  // more than one kernel draws; a multiple of 4, as PyTorch requires

constexpr std::array<int64_t, 1> kDense{1};

at::Tensor bytes_of(const c10::Storage& storage, int64_t offset, int64_t bytes) {
  const auto key = dispatch_key(storage.device().type());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(bytes), c10::IntArrayRef(kDense), offset);
  return tensor;
}

c10::Storage storage_of(c10::DataPtr memory, int64_t bytes, c10::Allocator* allocator) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes), std::move(memory), allocator,
                                                            /*resizable=*/false));
}

}  // namespace

c10::DispatchKey dispatch_key(c10::DeviceType type) { return c10::computeDispatchKey(c10::kByte, c10::kStrided, c10::Device(type)); }

Device::Device(std::string kind, int index, std::string model, LimitMemory limit_memory, MakeGraph make_graph)
    : kind_(std::move(kind)),
      model_(std::move(model)),
      where_(type_of(kind_), type_of(kind_) == c10::kCPU ? -1 : static_cast<c10::DeviceIndex>(index)),
      limit_memory_(std::move(limit_memory)),
      make_graph_(std::move(make_graph)) {
  if (is_host()) return;
  at::globalContext().lazyInitDevice(where_.type());
  const auto seen = at::accelerator::deviceCount();
  TORCH_CHECK(index >= 0 && index < seen, "there is no device ", kind_, ":", index, "; PyTorch sees ", static_cast<int>(seen));
}

void Device::enter(std::optional<int> threads) const {
  if (threads) at::set_num_threads(*threads);
  if (!is_host()) at::accelerator::setDeviceIndex(where_.index());
}

void Device::limit_memory(int64_t bytes) const {
  if (!is_host()) limit_memory_(bytes);
}

c10::Storage Device::allocate(int64_t bytes, bool zeroed) const {
  auto* allocator = c10::GetAllocator(where_.type());
  auto storage = storage_of(zeroed && is_host() ? allocate_zeroed_on_host(bytes) : allocator->allocate(static_cast<size_t>(bytes)), bytes, allocator);
  if (zeroed && !is_host() && bytes != 0) bytes_of(storage, 0, bytes).zero_();
  return storage;
}

c10::Storage Device::allocate_staging(int64_t bytes) const {
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCPU);
  if (is_host()) return at::empty({bytes}, options).storage();
  try {
    return at::empty({bytes}, options.pinned_memory(true)).storage();
  } catch (const c10::Error&) {  // the host pins no more
    return at::empty({bytes}, options).storage();
  }
}

c10::Storage Device::allocate_parked(int64_t bytes) const {
  return storage_of(allocate_uncounted_on_host(bytes), bytes, c10::GetAllocator(c10::kCPU));
}

void Device::copy(const c10::Storage& target, int64_t target_offset, const c10::Storage& source, int64_t source_offset, int64_t bytes) const {
  if (bytes == 0) return;
  if (is_host() && bytes <= kSerialCopyBytes) {
    std::memmove(static_cast<uint8_t*>(target.mutable_data()) + target_offset, static_cast<const uint8_t*>(source.data()) + source_offset, static_cast<size_t>(bytes));
    return;
  }
  bytes_of(target, target_offset, bytes).copy_(bytes_of(source, source_offset, bytes), /*non_blocking=*/true);
}

void Device::synchronize() const {
  if (!is_host()) at::accelerator::synchronizeDevice(where_.index());
}

c10::Event Device::record(c10::EventFlag flag) const {
  c10::Event event(where_.type(), flag);
  event.record(at::accelerator::getCurrentStream(where_.index()));
  return event;
}

bool Device::recovers() const noexcept {
  try {
    synchronize();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Device::busy() {
  if (is_host()) return false;
  if (!event_) {
    event_.emplace(record());
  }
  if (!event_->query()) return true;
  event_.reset();
  return false;
}

void Device::release_cache() const {
  if (is_host()) return;
  at::accelerator::emptyCache();
  at::getHostAllocator(where_.type())->empty_cache();
}

at::Generator Device::seeded_generator(uint64_t seed, uint64_t counter) const {
  at::Generator generator = at::globalContext().defaultGenerator(where_);
  if (recording_ != nullptr) {
    recording_->draw();
    return generator;
  }
  std::lock_guard<std::mutex> guard(generator.mutex());
  if (is_host()) {
    auto* state = at::check_generator<at::CPUGeneratorImpl>(generator);
    state->set_engine(engine_of(seed, counter));
    state->set_next_float_normal_sample(std::nullopt);
    state->set_next_double_normal_sample(std::nullopt);
  } else {
    generator.set_current_seed(seed);
    generator.set_offset(counter * kPhiloxOffsetPerCall);
  }
  return generator;
}

DeviceGraph::Draws Device::draws_of(DeviceGraph::Draws draws) const {
  for (auto& [seed, place] : draws) place *= kPhiloxOffsetPerCall;
  return draws;
}

}  // namespace forebay::worker
