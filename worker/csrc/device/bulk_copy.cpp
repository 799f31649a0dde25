#include "device/bulk_copy.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/from_blob.h>

namespace forebay::worker {

// PyTorch's own copy is asked, since at::parallel_for has one thread in what is compiled without OpenMP.
void copy_side_by_side(uint8_t* target, const uint8_t* source, int64_t bytes) {
  const auto over = [bytes](const uint8_t* data) { return at::from_blob(const_cast<uint8_t*>(data), {bytes}, at::kByte); };
  over(target).copy_(over(source));
}

BulkCopy::~BulkCopy() {
  if (std::none_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.used > 0; })) return;
  try {
    device_.synchronize();
  } catch (const std::exception&) {  // the device is lost, and copies nothing any more
  }
}

void BulkCopy::fetch(const c10::Storage& source, const Take& take) {
  const auto size = static_cast<int64_t>(source.nbytes());
  for (int64_t done = 0; done < size; done += kPartBytes) {
    const int64_t bytes = std::min(size - done, kPartBytes);
    if (device_.is_host()) {
      take(done, static_cast<const uint8_t*>(source.data()) + done, bytes);
      continue;
    }
    const auto& memory = memory_for(bytes);
    Piece& piece = pieces_[current_];
    device_.copy(memory, piece.used, source, done, bytes);
    piece.parts.push_back({piece.used, done, bytes, take});
    piece.used += bytes;
  }
}

void BulkCopy::store(const c10::Storage& target, const Fill& fill) {
  const auto size = static_cast<int64_t>(target.nbytes());
  for (int64_t done = 0; done < size; done += kPartBytes) {
    const int64_t bytes = std::min(size - done, kPartBytes);
    if (device_.is_host()) {
      fill(done, static_cast<uint8_t*>(target.mutable_data()) + done, bytes);
      continue;
    }
    const auto& memory = memory_for(bytes);
    Piece& piece = pieces_[current_];
    fill(done, static_cast<uint8_t*>(memory.mutable_data()) + piece.used, bytes);
    device_.copy(target, done, memory, piece.used, bytes);
    piece.used += bytes;
  }
}

void BulkCopy::finish() {
  for (size_t turn = 0; turn < kPieces; ++turn) next_piece();
}

const c10::Storage& BulkCopy::memory_for(int64_t bytes) {
  if (pieces_[current_].used + bytes > piece_bytes_) next_piece();
  auto& memory = staging_[current_];
  if (!memory || static_cast<int64_t>(memory.nbytes()) < piece_bytes_) memory = device_.allocate_staging(piece_bytes_);
  return memory;
}

void BulkCopy::next_piece() {
  if (pieces_[current_].used > 0) pieces_[current_].copied.emplace(device_.record());
  current_ = (current_ + 1) % kPieces;
  empty(current_);
}

void BulkCopy::empty(size_t index) {
  Piece& piece = pieces_[index];
  if (piece.copied) piece.copied->synchronize();
  piece.copied.reset();
  piece.used = 0;
  for (const auto& part : std::exchange(piece.parts, {})) {
    part.take(part.offset, static_cast<const uint8_t*>(staging_[index].data()) + part.at, part.bytes);
  }
}

}  // namespace forebay::worker
