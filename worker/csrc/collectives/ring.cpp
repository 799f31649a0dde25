#include "collectives/ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <forebay/wire.h>

namespace forebay::worker {

namespace {

constexpr size_t kRoom = size_t{1} << 20;  // bytes that are on their way
constexpr size_t kCountsBytes = 4096;
constexpr size_t kBytes = wire::kSharedHeaderBytes + kCountsBytes + kRoom;
constexpr size_t kLine = 64;  // of a processor's caches

}  // namespace

// Each is written by one side alone, but for who sleeps.
struct Ring::Counts {
  alignas(kLine) std::atomic<uint64_t> sent;
  alignas(kLine) std::atomic<uint64_t> received;
  alignas(kLine) std::atomic<uint32_t> sender_sleeps;
  alignas(kLine) std::atomic<uint32_t> receiver_sleeps;
};

Ring::Ring() : memory_(kBytes), sends_(true) {}

Ring::Ring(Descriptor descriptor) : memory_(std::move(descriptor), kBytes), sends_(false) {}

Ring::Counts& Ring::counts() const { return *reinterpret_cast<Counts*>(memory_.at(wire::kSharedHeaderBytes, sizeof(Counts))); }

uint8_t* Ring::at(uint64_t place) const { return memory_.at(wire::kSharedHeaderBytes + kCountsBytes + place % kRoom, 0); }

size_t Ring::put(const uint8_t* data, size_t bytes) {
  const uint64_t on_the_way = moved_ - counts().received.load(std::memory_order_acquire);
  if (on_the_way > kRoom) throw wire::WireError("more was received than sent");
  bytes = std::min<size_t>(bytes, kRoom - on_the_way);
  const size_t first = std::min<size_t>(bytes, kRoom - moved_ % kRoom);
  if (first > 0) std::memcpy(at(moved_), data, first);
  if (first < bytes) std::memcpy(at(0), data + first, bytes - first);
  moved_ += bytes;
  counts().sent.store(moved_, std::memory_order_release);
  return bytes;
}

size_t Ring::take(uint8_t* target, size_t bytes) {
  const uint64_t there = counts().sent.load(std::memory_order_acquire) - moved_;
  if (there > kRoom) throw wire::WireError("more was sent than there is room for");
  bytes = std::min<size_t>(bytes, there);
  const size_t first = std::min<size_t>(bytes, kRoom - moved_ % kRoom);
  if (first > 0) std::memcpy(target, at(moved_), first);
  if (first < bytes) std::memcpy(target + first, at(0), bytes - first);
  moved_ += bytes;
  counts().received.store(moved_, std::memory_order_release);
  return bytes;
}

void Ring::sleep() {
  (sends_ ? counts().sender_sleeps : counts().receiver_sleeps).store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Ring::wakes() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto& sleeps = sends_ ? counts().receiver_sleeps : counts().sender_sleeps;
  return sleeps.load(std::memory_order_relaxed) != 0 && sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

}  // namespace forebay::worker
