#include "bulk/content_hash.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace forebay {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kPasses = 4;
constexpr size_t kShiftBytes = 16;  // between the keys of two passes, as RFC 4418 has it
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr size_t kFingerprintPlaces = 64;
constexpr size_t kAheadBytes = 1024;  // which are asked of memory before they are needed

struct Keys {
  alignas(32) std::array<uint8_t, kBlockBytes + (kPasses - 1) * kShiftBytes> nh;
  std::array<uint64_t, 3> points;

  Keys() {
    std::random_device chance;
    for (size_t index = 0; index < nh.size(); index += sizeof(uint32_t)) {
      const uint32_t word = chance();
      std::memcpy(nh.data() + index, &word, sizeof(word));
    }
    for (auto& point : points) point = ((uint64_t{chance()} << 32) | chance()) % kPrime;
  }
};

const Keys& keys() {
  static const Keys drawn;
  return drawn;
}

using Sums = std::array<uint64_t, kPasses>;

// With kCopies also to `target`, of what was hashed: what the source holds may change meanwhile.
template <bool kCopies>
void nh_portable(const uint8_t* source, const uint8_t* key, Sums& sums, uint8_t* target) {
  if constexpr (kCopies) std::memcpy(target, source, kBlockBytes);
  const uint8_t* block = kCopies ? target : source;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    uint64_t sum = 0;
    for (size_t at = 0; at < kBlockBytes; at += 8) {
      std::array<uint32_t, 2> data, secret;
      std::memcpy(data.data(), block + at, sizeof(data));
      std::memcpy(secret.data(), key + at + pass * kShiftBytes, sizeof(secret));
      sum += static_cast<uint64_t>(data[0] + secret[0]) * (data[1] + secret[1]);
    }
    sums[pass] = sum;
  }
}

#ifdef __x86_64__
template <bool kCopies>
__attribute__((target("avx2"))) void nh_avx2(const uint8_t* block, const uint8_t* key, Sums& sums, uint8_t* target) {
  __m256i lanes[kPasses] = {};
  for (size_t at = 0; at < kBlockBytes; at += sizeof(__m256i)) {
    _mm_prefetch(reinterpret_cast<const char*>(block + at + kAheadBytes), _MM_HINT_T0);
    const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + at));
    if constexpr (kCopies) _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + at), data);
    for (size_t pass = 0; pass < kPasses; ++pass) {
      const __m256i secret = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key + at + pass * kShiftBytes));
      const __m256i both = _mm256_add_epi32(data, secret);
      lanes[pass] = _mm256_add_epi64(lanes[pass], _mm256_mul_epu32(both, _mm256_srli_epi64(both, 32)));
    }
  }
  for (size_t pass = 0; pass < kPasses; ++pass) {
    alignas(__m256i) std::array<uint64_t, 4> parts;
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts.data()), lanes[pass]);
    sums[pass] = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  }
}

template <bool kCopies>
__attribute__((target("avx512f"))) void nh_avx512(const uint8_t* block, const uint8_t* key, Sums& sums, uint8_t* target) {
  __m512i lanes[kPasses] = {};
  for (size_t at = 0; at < kBlockBytes; at += sizeof(__m512i)) {
    _mm_prefetch(reinterpret_cast<const char*>(block + at + kAheadBytes), _MM_HINT_T0);
    const __m512i data = _mm512_loadu_si512(block + at);
    if constexpr (kCopies) _mm512_storeu_si512(target + at, data);
    for (size_t pass = 0; pass < kPasses; ++pass) {
      const __m512i both = _mm512_add_epi32(data, _mm512_loadu_si512(key + at + pass * kShiftBytes));
      lanes[pass] = _mm512_add_epi64(lanes[pass], _mm512_mul_epu32(both, _mm512_srli_epi64(both, 32)));
    }
  }
  for (size_t pass = 0; pass < kPasses; ++pass) {
    alignas(__m512i) std::array<uint64_t, 8> parts;
    _mm512_store_si512(parts.data(), lanes[pass]);
    sums[pass] = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  }
}
#endif

using Nh = void (*)(const uint8_t* block, const uint8_t* key, Sums& sums, uint8_t* target);

// All give the same sums.
template <bool kCopies>
Nh fastest_nh() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return nh_avx512<kCopies>;
  if (__builtin_cpu_supports("avx2")) return nh_avx2<kCopies>;
#endif
  return nh_portable<kCopies>;
}

uint64_t times_plus(uint64_t value, uint64_t factor, uint64_t term) {
  const auto product = static_cast<unsigned __int128>(value) * factor + term;
  uint64_t result = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
  return result >= kPrime ? result - kPrime : result;
}

}  // namespace

template <bool kCopies>
void ContentHash::take_block(const uint8_t* block, uint8_t* target) {
  static const Nh nh = fastest_nh<kCopies>();
  Sums sums;
  nh(block, keys().nh.data(), sums, target);
  for (const uint64_t sum : sums) {
    for (const uint64_t half : {sum >> 32, sum & 0xffffffff}) {  // each less than the prime
      for (size_t index = 0; index < state_.size(); ++index) state_[index] = times_plus(state_[index], keys().points[index], half);
    }
  }
}

void ContentHash::add(const uint8_t* data, size_t bytes) {
  bytes_ += bytes;
  if (!rest_.empty()) {
    const size_t taken = std::min(bytes, kBlockBytes - rest_.size());
    rest_.insert(rest_.end(), data, data + taken);
    data += taken;
    bytes -= taken;
    if (rest_.size() < kBlockBytes) return;
    take_block<false>(rest_.data(), nullptr);
    rest_.clear();
  }
  for (; bytes >= kBlockBytes; data += kBlockBytes, bytes -= kBlockBytes) take_block<false>(data, nullptr);
  rest_.assign(data, data + bytes);
}

void ContentHash::copy(uint8_t* target, const uint8_t* data, size_t bytes) {
  const size_t whole = rest_.empty() ? bytes / kBlockBytes * kBlockBytes : 0;
  for (size_t done = 0; done < whole; done += kBlockBytes) take_block<true>(data + done, target + done);
  bytes_ += whole;
  std::memcpy(target + whole, data + whole, bytes - whole);
  add(target + whole, bytes - whole);
}

ContentDigest ContentHash::digest() {
  if (!rest_.empty()) {  // zeros to the block's end; the number of bytes tells them from real ones
    rest_.resize(kBlockBytes);
    take_block<false>(rest_.data(), nullptr);
    rest_.clear();
  }
  return {state_, bytes_};
}

uint64_t content_fingerprint(const uint8_t* data, size_t bytes) {
  uint64_t hash = bytes;
  const size_t last = bytes - sizeof(uint64_t);
  for (size_t place = 0; place < kFingerprintPlaces; ++place) {
    uint64_t word;
    std::memcpy(&word, data + last / (kFingerprintPlaces - 1) * place, sizeof(word));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace forebay
