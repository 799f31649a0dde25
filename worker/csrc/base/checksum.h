// A 64-bit checksum at about the speed of memory, against damage on the way to a disk or another worker and back; not against forgers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace forebay::worker {

class Checksum {
 public:
  static constexpr size_t kBlockBytes = 32;

  // In pieces; each but the last has a multiple of kBlockBytes.
  void add(const void* data, size_t bytes) {
    const auto* next = static_cast<const uint8_t*>(data);
    length_ += bytes;
    for (; bytes >= kBlockBytes; bytes -= kBlockBytes, next += kBlockBytes) block(next);
    if (bytes == 0) return;
    std::array<uint8_t, kBlockBytes> rest{};
    std::memcpy(rest.data(), next, bytes);
    block(rest.data());
  }

  uint64_t digest() const {
    uint64_t digest = length_;
    for (const uint64_t lane : lanes_) digest = std::rotl(digest ^ lane, 29) * kOdd;
    return digest ^ (digest >> 32);
  }

 private:
  static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

  // Four independent lanes, so that their multiplications overlap.
  void block(const uint8_t* data) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), data, kBlockBytes);
    for (size_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane] = std::rotl(lanes_[lane] ^ words[lane], 31) * kOdd;
  }

  std::array<uint64_t, 4> lanes_{1, 2, 3, 4};
  uint64_t length_ = 0;
};

}  // namespace forebay::worker
