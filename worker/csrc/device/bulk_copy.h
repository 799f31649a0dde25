// Many bytes between a device and this host, through a few pieces of memory that the device reaches fast: while it copies one of them, the
// processors fill or empty another.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include "device/device.h"

namespace forebay::worker {

class BulkCopy {
 public:
  static constexpr int64_t kPartBytes = int64_t{16} << 20;  // as much as is handed over at a time
  static constexpr size_t kPieces = 4;

  // The pieces. To pin memory takes longer than to copy it, so they are kept from one copy to the next: 64 MiB at most.
  using Staging = std::array<c10::Storage, kPieces>;

  // `offset`: of the part, in its storage.
  using Take = std::function<void(int64_t offset, const uint8_t* data, int64_t bytes)>;
  using Fill = std::function<void(int64_t offset, uint8_t* data, int64_t bytes)>;

  // `bytes`: of all storages together, for which smaller pieces may do. `staging` outlives it, and is used by one copy at a time.
  BulkCopy(const Device& device, Staging& staging, int64_t bytes) : device_(device), staging_(staging), piece_bytes_(std::min(bytes, kPartBytes)) {}
  // Waits for what an exception has kept finish() from waiting for: the device reads from the pieces, and writes to them, until its copies end.
  ~BulkCopy();
  BulkCopy(const BulkCopy&) = delete;
  BulkCopy& operator=(const BulkCopy&) = delete;

  // Hands all bytes of a storage to `take`, in order, in parts of kPartBytes and a last one; the later ones by a later call.
  void fetch(const c10::Storage& source, const Take& take);
  // Has `fill` give all bytes of a storage, in order, in the same parts, and copies them to it.
  void store(const c10::Storage& target, const Fill& fill);
  // To be called at the end: all parts were handed over, and the device is done with what was stored.
  void finish();

 private:
  struct Part {
    int64_t at;  // in the piece
    int64_t offset;
    int64_t bytes;
    Take take;
  };
  // Holds parts of several small storages, or one part of a large one.
  struct Piece {
    int64_t used = 0;
    std::vector<Part> parts;
    std::optional<c10::Event> copied;
  };

  // The memory of the piece in use, which has room for so many more bytes.
  const c10::Storage& memory_for(int64_t bytes);
  // Goes on to the oldest piece.
  void next_piece();
  // Waits for the device's copies, and hands over what they fetched.
  void empty(size_t index);

  const Device& device_;
  Staging& staging_;
  const int64_t piece_bytes_;
  std::array<Piece, kPieces> pieces_;
  size_t current_ = 0;
};

// As std::memcpy, by all threads that the process computes with. For parts of many MiB: the threads wait for each other at the end.
void copy_side_by_side(uint8_t* target, const uint8_t* source, int64_t bytes);

}  // namespace forebay::worker
