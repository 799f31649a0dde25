#include "server/images.h"

#include <chrono>
#include <exception>
#include <string>

namespace forebay::worker {

// The segment ends. The client hears what came of it; nothing else depends on it.
void Images::keep(wire::Reader& frame) {
  frame.u8();
  const uint64_t number = frame.varint(), base = frame.varint();
  session_.end_segment();
  session_.settle();
  const auto since = Clock::now();
  int64_t bytes = 0;
  std::string why = folder_.is_set() ? session_.image().refusal() : "this worker keeps none";
  if (session_.collectives().has_joined()) why = "its session is in a process group";
  try {
    if (why.empty()) bytes = folder_.write(number, base, session_.storages().used_bytes(), [this](const SendImage& send) { session_.send_image(send); });
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
    folder_.read(number, session_.image());
  } catch (const std::exception& error) {
    throw wire::WireError("image " + std::to_string(number) + " of this session cannot be used: " + error.what());
  }
}

}  // namespace forebay::worker
