// Images of a session that outlive this process.
#include <chrono>
#include <exception>
#include <string>

#include "server/server.h"

namespace forebay::worker {

// Between two segments. Its client hears what came of it; nothing else depends on it.
void Server::keep(wire::Reader& frame) {
  frame.u8();
  const uint64_t number = frame.varint(), base = frame.varint();
  session_.end_segment();
  session_.settle();
  const auto since = Clock::now();
  int64_t bytes = 0;
  std::string why = images_.is_set() ? session_.unkeepable() : "this worker keeps none";
  try {
    if (why.empty()) bytes = images_.write(number, base, session_.storages().used_bytes(), [this](const SendImage& send) { session_.send_image(send); });
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

// The session goes on from an image that another worker kept.
void Server::restore(wire::Reader& frame) {
  frame.u8();
  const uint64_t number = frame.varint();
  if (!session_.is_fresh()) throw wire::WireError("a RESTORE of a session that has begun");
  wait_for_lease();
  try {
    images_.read(number, session_.image());
  } catch (const std::exception& error) {
    throw wire::WireError("image " + std::to_string(number) + " of this session cannot be used: " + error.what());
  }
}

}  // namespace forebay::worker
