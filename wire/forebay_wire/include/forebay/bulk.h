// How both sides take bulk data out of the memory that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace forebay {

// Copies, and reads each byte once. Past the caches, what the target held need not be read first, and the caches keep the shared area;
// whoever reads the target next finds nothing of it there.
inline void copy_out(uint8_t* target, const uint8_t* source, size_t bytes, bool past_caches) {
#ifdef __x86_64__
  constexpr size_t kLine = 64;
  const size_t first = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (past_caches && bytes > first) {
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
