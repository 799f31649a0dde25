#include "server/images.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>

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

void Images::leave(uint64_t number) {
  last_ = number;
  if (number == 0) folder_.clear();
}

uint64_t Images::keep_last() {
  if (last_ == 0) return 0;
  try {
    write(last_, 0, Clock::now() + kLastPatience);
    return last_;
  } catch (const std::exception&) {
    folder_.clear();  // whoever comes for the session has it from this process alone
    return 0;
  }
}

int64_t Images::write(uint64_t number, uint64_t base, Clock::time_point until) {
  const std::string why = folder_.is_set() ? session_.image().refusal() : "this worker keeps none";
  if (!why.empty()) throw std::runtime_error(why);
  return folder_.write(number, base, session_.storages().used_bytes(), [&](const SendImage& send) {
    session_.send_image([&](const wire::Writer& head, const uint8_t* payload, size_t bytes) {
      if (Clock::now() > until) throw std::runtime_error("it takes too long");
      send(head, payload, bytes);
    });
  });
}

}  // namespace forebay::worker
