#include "server/images.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "gang/rank.h"

namespace forebay::worker {

namespace {

constexpr auto kLastPatience = std::chrono::seconds(60);  // of who waits for the session that left, and of the pool

}  // namespace

// The segment ends. The client hears what came of it; nothing else depends on it.
void Images::keep(wire::Reader& frame) {
  frame.u8();
  const uint64_t number = frame.varint(), base = frame.varint();
  const bool together = !frame.done() && frame.u8() != 0;
  session_.end_segment();
  session_.settle();
  const auto since = Clock::now();
  int64_t bytes = 0;
  std::string why;
  try {
    if (session_.gang().is_on() && session_.storages().parked()) throw std::runtime_error("a session of several devices is parked");
    if (session_.collectives().has_joined() && !together) throw std::runtime_error("its session is in a process group");
    bytes = write(number, base);
    if (!together) session_.segments().adopt_arrived();  // what is done again from this image begins with them, too
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    why = error.what();
  }
  const auto took_ns = static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - since).count());
  if (why.empty()) mailbox_.report({Event::Kind::kKept, number, static_cast<uint64_t>(bytes)});
  wire::Writer head;
  head.reply(wire::Reply::kKept);
  head.varint(0);  // no thread waits for it
  head.varint(number);
  head.varint(static_cast<uint64_t>(bytes));
  head.varint(took_ns);
  head.string(told_text(why, wire::kStringBytesMax));
  connection_.send(head, nullptr, 0);
}

void Images::restore(wire::Reader& frame) {
  frame.u8();
  const uint64_t number = frame.varint();
  if (!session_.image().is_fresh()) throw wire::WireError("a RESTORE of a session that has begun");
  try {
    session_.image().expect_restore();
    go_on_from(number);
    session_.image().restore();
    session_.restore();
  } catch (const RankLost&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw wire::WireError(error.what());
  }
}

void Images::go_on_from(uint64_t number) {
  try {
    folder_.read(number, session_.image());
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error("image " + std::to_string(number) + " of this session cannot be used: " + error.what());
  }
}

wire::SessionImages Images::session_images() const { return {begun_, folder_.is_set() ? folder_.numbers() : std::vector<uint64_t>()}; }

void Images::leave(uint64_t number, uint64_t base) {
  last_ = number;
  base_ = base;
  if (number == 0) folder_.clear();
}

uint64_t Images::keep_last() {
  if (last_ == 0) return 0;
  const auto write_beside = [this, until = Clock::now() + kLastPatience](uint64_t base) {
    try {
      write(last_, base, until);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (write_beside(base_) || (base_ != 0 && write_beside(0))) return last_;
  folder_.clear();  // whoever comes for the session has it from this process alone
  return 0;
}

// Its pool has heard of the last one.
void Images::drop_base() {
  if (std::exchange(base_, 0) != 0) folder_.keep_only(last_);
}

// Checkpoints go along if there is room for them.
int64_t Images::write(uint64_t number, uint64_t base, Clock::time_point until) {
  const std::string why = folder_.is_set() ? session_.image().refusal() : "this worker keeps none";
  if (!why.empty()) throw std::runtime_error(why);
  const auto write_with = [&](Packing packing, int64_t kept_bytes) {
    return folder_.write(number, base, session_.storages().used_bytes() - session_.storages().absent_bytes() + kept_bytes, [&](const SendImage& send) {
      session_.send_image(packing, [&](const wire::Writer& head, const uint8_t* payload, size_t bytes) {
        if (Clock::now() > until) throw std::runtime_error("it takes too long");
        send(head, payload, bytes);
      });
    });
  };
  const int64_t kept_bytes = session_.storages().kept_bytes();
  try {
    return write_with(Packing::kWithoutForks, kept_bytes);
  } catch (const std::runtime_error&) {
    if (kept_bytes == 0) throw;
  }
  return write_with(Packing::kNone, 0);
}

// Copies.

void Images::copy(orders::Copy order) {
  copies_.push_back(std::move(order));
  make_copies();
}

void Images::make_copies() {
  const auto come = std::stable_partition(copies_.begin(), copies_.end(), [&](const orders::Copy& order) { return !session_.checkpoints().has_come(order.checkpoint); });
  const std::vector<orders::Copy> due(std::make_move_iterator(come), std::make_move_iterator(copies_.end()));
  copies_.erase(come, copies_.end());
  for (const auto& order : due) make_copy(order);
}

void Images::make_copy(const orders::Copy& order) {
  int64_t bytes = 0;
  std::string why;
  try {
    bytes = copy_to(order);
  } catch (const std::exception& error) {
    why = told_text(error.what(), wire::kStringBytesMax);
  }
  mailbox_.report({Event::Kind::kCopied, 0, static_cast<uint64_t>(bytes), 0, order.session + " " + why});
}

int64_t Images::copy_to(const orders::Copy& order) {
  const auto& checkpoints = session_.checkpoints();
  const Snapshot* snapshot = checkpoints.snapshot(order.checkpoint);
  if (snapshot == nullptr) throw std::runtime_error(checkpoints.why_no_forks().empty() ? "what it held then is not kept any more" : checkpoints.why_no_forks());
  if (!order.folder.is_set()) throw std::runtime_error("no images are kept of its flavor");
  if (copied_ && copied_->checkpoint == order.checkpoint) {
    try {
      return order.folder.link_shared(copied_->folder);
    } catch (const std::system_error&) {  // that session is over
    }
  }
  const auto hand_over = [&](const Storages::TakeBytes& take) { session_.checkpoints().hand_over(order.checkpoint, take); };
  const int64_t bytes = order.folder.write_shared(session_.storages().used_bytes(), {*snapshot, hand_over});
  copied_ = order;
  return bytes;
}

}  // namespace forebay::worker
