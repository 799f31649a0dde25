#include "device/bernoulli.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/NativeFunctions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BY_VECTORS __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define BY_VECTORS
#endif

namespace forebay::worker {

namespace {

// M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998: the generator of PyTorch's host, whose state these work on.
constexpr int kWords = at::MERSENNE_STATE_N, kAhead = at::MERSENNE_STATE_M;
constexpr int kBlock = 1024;  // elements that are drawn at a time
constexpr int kBits = 53;     // of a number from 0 to below 1, of two words

inline uint32_t mixed(uint32_t high, uint32_t low) {
  const uint32_t both = (high & at::UMASK) | (low & at::LMASK);
  return (both >> 1) ^ ((low & 1U) * static_cast<uint32_t>(at::MATRIX_A));
}

BY_VECTORS void twist(uint32_t* state) {
  for (int k = 0; k < kWords - kAhead; ++k) state[k] = state[k + kAhead] ^ mixed(state[k], state[k + 1]);
  for (int k = kWords - kAhead; k < kWords - 1; ++k) state[k] = state[k + kAhead - kWords] ^ mixed(state[k], state[k + 1]);
  state[kWords - 1] = state[kAhead - 1] ^ mixed(state[kWords - 1], state[0]);
}

BY_VECTORS void temper(const uint32_t* state, uint32_t* words, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    uint32_t word = state[k];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680U;
    word ^= (word << 15) & 0xefc60000U;
    words[k] = word ^ (word >> 18);
  }
}

// Whether number k of the words, taken as a number of 53 bits, is below the bound.
BY_VECTORS void compare(const uint32_t* words, bool* drawn, int64_t count, uint64_t bound) {
  const auto high_bound = static_cast<uint32_t>(bound >> 32), low_bound = static_cast<uint32_t>(bound);
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t high = words[2 * k] & ((1U << (kBits - 32)) - 1), low = words[2 * k + 1];
    drawn[k] = (high < high_bound) | ((high == high_bound) & (low < low_bound));
  }
}

// The next words of the generator. Its `left_` is one more than the words that are left of its state.
void take(at::mt19937_data_pod& state, uint32_t* words, int64_t count) {
  while (count > 0) {
    if (state.left_ == 1) {
      twist(state.state_.data());
      state.next_ = 0;
      state.left_ = kWords + 1;
    }
    const auto now = std::min<int64_t>(state.left_ - 1, count);
    temper(state.state_.data() + state.next_, words, now);
    state.next_ += static_cast<uint32_t>(now);
    state.left_ -= static_cast<int>(now);
    words += now;
    count -= now;
  }
}

template <typename T>
void draw(T* target, int64_t count, double p, at::mt19937_data_pod& state) {
  const auto bound = static_cast<uint64_t>(std::ceil(std::ldexp(p, kBits)));
  std::array<uint32_t, 2 * kBlock> words;
  std::array<bool, kBlock> drawn;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t now = std::min<int64_t>(kBlock, count - done);
    take(state, words.data(), 2 * now);
    compare(words.data(), drawn.data(), now, bound);
    std::copy_n(drawn.data(), now, target + done);
  }
}

at::Tensor& bernoulli_(at::Tensor& self, double p, std::optional<at::Generator> generator) {
  if (!(p >= 0 && p <= 1) || !self.is_contiguous() || at::isComplexType(self.scalar_type())) return at::native::bernoulli_(self, p, std::move(generator));
  auto* source = at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(source->mutex_);
  at::mt19937_data_pod state = source->engine().data();
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, self.scalar_type(), "bernoulli_", [&] { draw(self.mutable_data_ptr<scalar_t>(), self.numel(), p, state); });
  at::mt19937 engine;
  engine.set_data(state);
  source->set_engine(engine);
  return self;
}

bool draws_the_same() {
  constexpr uint64_t kSeed = 1;
  constexpr int64_t kElements = 2 * kWords;
  constexpr double kP = 0.3;
  const auto theirs = at::make_generator<at::CPUGeneratorImpl>(kSeed), ours = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  auto expected = at::empty({kElements}, at::kBool), drawn = at::empty({kElements}, at::kBool);
  at::native::bernoulli_(expected, kP, theirs);
  bernoulli_(drawn, kP, ours);
  return at::equal(expected, drawn) && at::equal(theirs.get_state(), ours.get_state());
}

// PyTorch warns of a kernel that takes another's place.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void draw_bernoulli_by_vectors() {
  static const bool is_drawn_so = [] {
    if (!draws_the_same()) return false;
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    library.impl("bernoulli_.float", bernoulli_);
    return true;
  }();
  (void)is_drawn_so;
}

}  // namespace forebay::worker
