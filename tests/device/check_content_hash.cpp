// The hash of what was uploaded: every way to compute it, and every way to cut the bytes, gives the same.
#include "../../device/csrc/bulk/content_hash.cpp"

#include <cstdio>

using namespace forebay;

namespace {

std::vector<uint8_t> chance_bytes(size_t count) {
  std::mt19937_64 chance(20);
  std::vector<uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(chance());
  return bytes;
}

ContentDigest digest_of(const std::vector<uint8_t>& bytes, size_t piece) {
  ContentHash hash;
  for (size_t at = 0; at < bytes.size(); at += piece) hash.add(bytes.data() + at, std::min(piece, bytes.size() - at));
  return hash.digest();
}

ContentDigest digest_of_copy(const std::vector<uint8_t>& bytes, size_t piece, std::vector<uint8_t>& target) {
  ContentHash hash;
  for (size_t at = 0; at < bytes.size(); at += piece) hash.copy(target.data() + at, bytes.data() + at, std::min(piece, bytes.size() - at));
  return hash.digest();
}

int failures = 0;

void check(bool good, const char* what, size_t value) {
  if (good) return;
  std::fprintf(stderr, "%s (%zu)\n", what, value);
  ++failures;
}

void check_way(Nh hashes, Nh copies, const char* what) {
  const auto block = chance_bytes(kBlockBytes);
  Sums wanted, sums;
  nh_portable<false>(block.data(), keys().nh.data(), wanted, nullptr);
  hashes(block.data(), keys().nh.data(), sums, nullptr);
  check(sums == wanted, what, 0);
  std::vector<uint8_t> target(kBlockBytes);
  copies(block.data(), keys().nh.data(), sums, target.data());
  check(sums == wanted && target == block, what, 1);
}

void check_ways() {
  check_way(nh_portable<false>, nh_portable<true>, "the plain way gives other sums, or copies other bytes");
  check_way(fastest_nh<false>(), fastest_nh<true>(), "the fastest way gives other sums than the plain one, or copies other bytes");
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2")) return;
  check_way(nh_avx2<false>, nh_avx2<true>, "AVX2 gives other sums than the plain way, or copies other bytes");
#endif
}

void check_pieces() {
  for (const size_t count : {1ul, 4095ul, 4096ul, 4097ul, 100'000ul}) {
    const auto bytes = chance_bytes(count);
    for (const size_t piece : {1ul, 777ul, 4096ul, 5000ul, 1'000'000ul}) {
      check(digest_of(bytes, piece) == digest_of(bytes, count), "cut in pieces of", piece);
      std::vector<uint8_t> target(count);
      check(digest_of_copy(bytes, piece, target) == digest_of(bytes, count) && target == bytes, "copied in pieces of", piece);
    }
  }
}

void check_differences() {
  auto bytes = chance_bytes(20'000);
  const auto wanted = digest_of(bytes, bytes.size());
  for (size_t place = 0; place < bytes.size(); place += 61) {
    bytes[place] ^= 1;
    check(digest_of(bytes, bytes.size()) != wanted, "another byte is not seen at", place);
    bytes[place] ^= 1;
  }
  bytes.push_back(0);  // what the last block is filled up with
  check(digest_of(bytes, bytes.size()) != wanted, "one more zero is not seen", bytes.size());
  bytes.pop_back();
  std::swap_ranges(bytes.begin(), bytes.begin() + kBlockBytes, bytes.begin() + kBlockBytes);
  check(digest_of(bytes, bytes.size()) != wanted, "two blocks that changed places are not seen", 0);
}

}  // namespace

int main() {
  check_ways();
  check_pieces();
  check_differences();
  return failures == 0 ? 0 : 1;
}
