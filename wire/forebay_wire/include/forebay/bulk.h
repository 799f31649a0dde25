// How both sides take bulk data out of the memory that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace forebay {

constexpr int64_t kPastCachesBytes = 1 << 20;  // targets of so much are written past the caches

// Copies a piece of what goes into a target of `target_bytes`, and reads each byte once.
// A large target is written past the caches: its old contents need not be read first, and the caches keep the shared area.
inline void copy_out(uint8_t* target, const uint8_t* source, size_t bytes, int64_t target_bytes) {
#ifdef __x86_64__
  constexpr size_t kLine = 64;
  const size_t first = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (target_bytes >= kPastCachesBytes && bytes > first) {
    std::memcpy(target, source, first);
    target += first;
    source += first;
    bytes -= first;
    for (; bytes >= kLine; target += kLine, source += kLine, bytes -= kLine) {
      const auto* from = reinterpret_cast<const __m128i*>(source);
      auto* to = reinterpret_cast<__m128i*>(target);
      const __m128i parts[]{_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2), _mm_loadu_si128(from + 3)};
      for (size_t part = 0; part < 4; ++part) _mm_stream_si128(to + part, parts[part]);
    }
    _mm_sfence();
  }
#endif
  std::memcpy(target, source, bytes);
}

}  // namespace forebay
