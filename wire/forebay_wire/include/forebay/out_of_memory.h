// What both sides say where a virtual device's memory does not suffice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace forebay {

inline std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

// Begins as PyTorch's own text does, by which programs that look for a batch size know it.
inline std::string out_of_memory(int64_t requested_bytes, int64_t used_bytes, int64_t limit_bytes) {
  const int64_t available = std::max<int64_t>(limit_bytes - used_bytes, 0);
  return "CUDA out of memory. Tried to allocate " + human_bytes(requested_bytes) + ": " + human_bytes(used_bytes) + " are in use, " +
         human_bytes(available) + " available of this virtual device's limit of " + human_bytes(limit_bytes) +
         "; free tensors, or choose a larger flavor with `%flavor NAME` in a notebook, FOREBAY_FLAVOR for a program";
}

}  // namespace forebay
