// What a worker tells of the segments that came (docs/wire.md, SEGMENTS).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire.h"

namespace forebay::wire {

constexpr size_t kReasonBytesMax = 512;  // of what is said of a segment's tier

// How a segment is carried out.
struct Standing {
  uint8_t tier = 0;  // 0: it came once; 1: as steps that are known; 2: by a library
  std::string why{};  // the tier is not higher; or what its library takes of tier 1's time, what it took to make, and its sizes; in words
};

// A path of steps from the root of the tree at whose end a segment ended.
struct Segment {
  uint64_t identity = kIdentity;  // the same for the same steps, in any session
  uint64_t times = 0;             // it came, since the steps were dropped last
  uint64_t calls = 0;
  uint64_t allocations = 0;
  uint64_t words = 0;             // that its steps bind
  uint64_t varying = 0;           // of them, numbers that came otherwise than the time before
  uint64_t births = 0;            // storages that it makes
  uint64_t frees = 0;             // storages that are freed before its steps
  Standing standing{};

  static constexpr uint64_t kIdentity = 0xcbf29ce484222325;  // of nothing
};

// FNV-1a, 64 bits, of what `before` is the hash of, and of these bytes behind it.
inline uint64_t identity_of(std::string_view bytes, uint64_t before = Segment::kIdentity) {
  for (const char byte : bytes) before = (before ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return before;
}

inline void put_segments(Writer& out, const std::vector<Segment>& segments) {
  out.varint(segments.size());
  for (const auto& segment : segments) {
    out.u64(segment.identity);
    for (const uint64_t count : {segment.times, segment.calls, segment.allocations, segment.words, segment.varying, segment.births, segment.frees}) out.varint(count);
    out.u8(segment.standing.tier);
    out.string(segment.standing.why.substr(0, kReasonBytesMax));
  }
}

inline std::vector<Segment> get_segments(Reader& in) {
  std::vector<Segment> segments(in.count(kStepsMax, "the number of segments"));
  for (auto& segment : segments) {
    segment.identity = in.u64();
    for (uint64_t* count : {&segment.times, &segment.calls, &segment.allocations, &segment.words, &segment.varying, &segment.births, &segment.frees}) *count = in.varint();
    segment.standing.tier = in.u8();
    segment.standing.why = in.string(kReasonBytesMax);
  }
  return segments;
}

}  // namespace forebay::wire
