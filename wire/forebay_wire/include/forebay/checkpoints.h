// What a worker answers about a session's checkpoints (docs/wire.md, Checkpoints).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <forebay/wire.h>

namespace forebay::wire {

constexpr size_t kCheckpointsMax = 1024;  // of a session

// Of a CHECKPOINT.
constexpr uint8_t kNamed = 1;    // the program gave it a name
constexpr uint8_t kForForks = 2;  // sessions of forked processes may begin with it, and nobody goes back to it

// Of a WELCOME.
constexpr uint8_t kKeepsCheckpoints = 1;
constexpr uint8_t kCopiesCheckpoints = 2;   // as images of other sessions
constexpr uint8_t kCarriesCheckpoints = 3;  // likewise; and they are in images, and go along where the session moves
constexpr uint8_t kOnlyCarriesCheckpoints = 4;  // in images and where the session moves, but no session begins with one: of several devices

// CHECKPOINTS.
struct Checkpoints {
  struct One {
    uint64_t number = 0;
    bool is_present = false;  // the storages hold what they held then
  };
  std::vector<One> there;
  std::string why_dropped;  // the others; empty: none was
};

// WENT_BACK.
struct WentBack {
  uint64_t changed = 0;           // storages that were put back
  std::vector<uint64_t> storages;  // which; none where they are more than kItemsMax
  uint64_t resized = 0;           // left alone, since they have another size
};

inline void put_checkpoints(Writer& out, const Checkpoints& checkpoints) {
  out.varint(checkpoints.there.size());
  for (const auto& one : checkpoints.there) {
    out.varint(one.number);
    out.u8(one.is_present);
  }
  out.string(checkpoints.why_dropped);
}

inline Checkpoints get_checkpoints(Reader& in) {
  Checkpoints checkpoints;
  checkpoints.there.resize(in.count(kCheckpointsMax, "the number of checkpoints"));
  for (auto& one : checkpoints.there) {
    one.number = in.varint();
    one.is_present = in.u8() != 0;
  }
  checkpoints.why_dropped = in.string();
  return checkpoints;
}

inline void put_went_back(Writer& out, const WentBack& went) {
  out.varint(went.changed);
  out.varint(went.storages.size());
  for (const uint64_t id : went.storages) out.varint(id);
  out.varint(went.resized);
}

inline WentBack get_went_back(Reader& in) {
  WentBack went;
  went.changed = in.varint();
  went.storages.resize(in.count(kItemsMax, "the number of storages"));
  for (auto& id : went.storages) id = in.varint();
  went.resized = in.varint();
  return went;
}

}  // namespace forebay::wire
