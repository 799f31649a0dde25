#include "stream/downloads.h"

#include <algorithm>
#include <new>
#include <utility>

#include "bulk/shared_memory.h"
#include "forebay/bulk.h"

namespace forebay {

std::optional<size_t> Downloads::reserve(size_t slots) {
  if (pieces_.empty()) slots_ = 0;
  if (slots_ + slots > SharedMemory::kLaterSlots) return std::nullopt;
  return std::exchange(slots_, slots_ + slots);
}

void Downloads::add(Download download) {
  pieces_.push_back(std::move(download));
  in_progress_ = true;
}

void Downloads::take(uint64_t request, wire::Reply reply, wire::Reader& body, uint64_t generation) {
  while (!pieces_.empty() && pieces_.front().request < request) pieces_.pop_front();
  if (pieces_.empty() || pieces_.front().request != request) return;
  const Download& piece = pieces_.front();
  if (reply == wire::Reply::kDone) {
    copy_out(piece.place, piece.slot, static_cast<size_t>(piece.bytes), static_cast<int64_t>(piece.target.nbytes()) >= kPastCachesBytes);
    counters_.bytes_received.fetch_add(static_cast<uint64_t>(piece.bytes), std::memory_order_relaxed);
  } else if (!failure_ && reply == wire::Reply::kFailure) {
    failure_ = told_failure(body, generation);
  }
  pieces_.pop_front();
  if (pieces_.empty()) in_progress_ = false;
}

bool Downloads::write_to(const uint8_t* data, int64_t bytes) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Download& piece) { return piece.place < data + bytes && data < piece.place + piece.bytes; });
}

std::optional<ToldFailure> Downloads::take_failure() { return std::exchange(failure_, std::nullopt); }

void Downloads::drop() {
  pieces_.clear();
  in_progress_ = false;
}

void Downloads::clear() {
  drop();
  failure_.reset();
}

void Downloads::forked() {
  new (&pieces_) std::deque<Download>;
  in_progress_ = false;
}

}  // namespace forebay
