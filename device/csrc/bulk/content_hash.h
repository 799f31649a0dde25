// A hash under keys that this process draws by chance: which bytes the worker holds already.
//
// Two levels, as in UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC: Fast and Secure Message Authentication, CRYPTO 1999;
// RFC 4418): NH with four Toeplitz passes takes a block to 256 bits, and three polynomials modulo 2^61 - 1 take the blocks' words to 183.
// For any two different contents of at most 1 GiB the chance over the keys that they meet is less than 2^-115.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace forebay {

struct ContentDigest {
  std::array<uint64_t, 3> words{};
  uint64_t bytes = 0;
  bool operator==(const ContentDigest&) const = default;
};

class ContentHash {
 public:
  // May be called with any pieces; the digest is that of the whole.
  void add(const uint8_t* data, size_t bytes);
  // As add, and copies them in the same pass: what is hashed is what is copied, also where somebody changes it meanwhile.
  void copy(uint8_t* target, const uint8_t* data, size_t bytes);
  ContentDigest digest();

 private:
  template <bool kCopies>
  void take_block(const uint8_t* block, uint8_t* target);

  std::array<uint64_t, 3> state_{1, 1, 1};
  std::vector<uint8_t> rest_;  // of a block that is not whole
  uint64_t bytes_ = 0;
};

// What tells most contents apart at a glance, from a few places of them: equal contents have equal fingerprints.
uint64_t content_fingerprint(const uint8_t* data, size_t bytes);

}  // namespace forebay
