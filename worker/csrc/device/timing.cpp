#include "device/timing.h"

#include <utility>

#include "base/clock.h"

namespace forebay::worker {

namespace {

constexpr size_t kPendingMax = 4096;  // events are few on some devices

uint64_t nanoseconds(double milliseconds) { return milliseconds <= 0 ? 0 : static_cast<uint64_t>(milliseconds * 1e6); }

}  // namespace

c10::Event Timing::mark() const { return device_.record(c10::EventFlag::BACKEND_DEFAULT); }

void Timing::begin(size_t calls) {
  notes_.clear();
  pending_.clear();
  origin_.clear();
  left_ = calls;
  if (calls == 0 || device_.is_host()) return;
  try {
    device_.synchronize();
    origin_.push_back(mark());
    origin_ns_ = now_ns();
  } catch (const c10::Error&) {
    give_up();
  }
}

// A device that has failed tells no times; its failure is told by what runs on it.
void Timing::give_up() {
  left_ = 0;
  pending_.clear();
  origin_.clear();
}

void Timing::enter() {
  if (device_.is_host()) {
    start_ns_ = now_ns();
  } else {
    started_.clear();
    started_.push_back(mark());
  }
}

void Timing::leave(uint64_t sequence) {
  if (left_ == 0) return;
  --left_;
  if (device_.is_host()) {
    notes_.push_back({sequence, start_ns_, now_ns() - start_ns_});
    return;
  }
  try {
    pending_.push_back({sequence, std::move(started_.back()), mark()});
  } catch (const c10::Error&) {
    return give_up();
  }
  if (pending_.size() >= kPendingMax) read_clock();
}

// What an accelerator's own clock says of the calls that it was handed.
void Timing::read_clock() {
  if (pending_.empty()) return;
  try {
    device_.synchronize();
    for (const auto& call : pending_) {
      notes_.push_back({call.sequence, origin_ns_ + nanoseconds(origin_.front().elapsedTime(call.start)), nanoseconds(call.start.elapsedTime(call.end))});
    }
  } catch (const c10::Error&) {
    return give_up();
  }
  pending_.clear();
}

void Timing::tell(wire::Writer& out) {
  read_clock();
  out.varint(now_ns());
  out.varint(notes_.size());
  uint64_t sequence = 0, start_ns = 0;
  for (const auto& note : std::exchange(notes_, {})) {
    out.varint(note.sequence - sequence);
    out.zigzag(static_cast<int64_t>(note.start_ns - start_ns));
    out.varint(note.took_ns);
    sequence = note.sequence;
    start_ns = note.start_ns;
  }
}

}  // namespace forebay::worker
