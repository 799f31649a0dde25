// Two sides send each other frames over connections that break at any byte, for as many seconds as the first argument says, from the seed that
// the second says. Ends with an error unless each reads what the other wrote, no side keeps too much, and impossible counts change nothing.
// Prints how many connections broke, and how many counts were refused.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <vector>

#include <forebay/resumption.h>

using namespace forebay::wire;

namespace {

long refused = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Side {
  SentBytes sent;
  ReceivedBytes received;
  std::vector<uint8_t> frame{};    // that is being written
  size_t written = 0;              // of it
  std::mt19937_64 writes, expects; // the same numbers on both sides: what is written, and what is to be read
  uint64_t read = 0;
  std::vector<uint8_t> expected{};
  size_t expected_read = 0;

  Side(uint64_t own, uint64_t other) : writes(own), expects(other) {}
};

std::vector<uint8_t> next_frame(std::mt19937_64& chance) {
  const size_t most = chance() % 300 == 0 ? kChunkBytesMax : chance() % 5 == 0 ? 20'000 : 40;
  std::vector<uint8_t> frame(kFrameHeaderBytes + 1 + chance() % most);
  const uint64_t fill = chance();
  for (size_t index = kFrameHeaderBytes; index < frame.size(); ++index) frame[index] = static_cast<uint8_t>(fill >> (index % 57));
  put_frame_header(frame.data(), frame.size() - kFrameHeaderBytes);
  return frame;
}

// As a client: writes what the connection takes at once. As a worker: writes whole frames, which go when they can.
void write(Side& side, std::deque<uint8_t>& out, size_t room, bool is_client, std::mt19937_64& chance) {
  while (side.sent.left() > 0 && room > 0) {
    const size_t count = std::min<size_t>({side.sent.left(), room, 1 + chance() % 70'000});
    out.insert(out.end(), side.sent.next(), side.sent.next() + count);
    side.sent.advance(count);
    room -= count;
  }
  if (side.received.is_to_be_acknowledged() && side.sent.can_take_control()) side.sent.put_control(Control::kAcknowledge, side.received.acknowledge());
  if (side.sent.left() > 0 || side.sent.is_full()) return;
  if (side.written == side.frame.size()) {
    side.frame = next_frame(side.writes);
    side.written = 0;
  }
  const uint8_t* next = side.frame.data() + side.written;
  size_t count = side.frame.size() - side.written;
  if (is_client) {
    count = std::min(count, room);
    out.insert(out.end(), next, next + count);
    side.sent.note_sent(next, count);
  } else {
    side.sent.write(next, count);
  }
  side.written += count;
}

void take(Side& side, const uint8_t* data, size_t bytes) {
  for (size_t index = 0; index < bytes; ++index) {
    if (side.expected_read == side.expected.size()) {
      side.expected = next_frame(side.expects);
      side.expected_read = 0;
    }
    check(data[index] == side.expected[side.expected_read++], "another byte was read than was written");
  }
  side.read += bytes;
}

void read(Side& side, std::deque<uint8_t>& in, std::mt19937_64& chance) {
  const auto receive = [&in](uint8_t* target, size_t bytes) {
    const size_t count = std::min(bytes, in.size());
    std::copy_n(in.begin(), count, target);
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<std::ptrdiff_t>(count);
  };
  std::vector<uint8_t> target(1 + chance() % 50'000);
  if (const size_t direct = std::min(side.received.direct_bytes(), target.size())) {
    const auto count = static_cast<size_t>(receive(target.data(), direct));
    side.received.note_direct(count);
    return take(side, target.data(), count);
  }
  if (side.received.has_room() && chance() % 2 == 0) side.received.fill(receive, [&side](Control, uint64_t count) { side.sent.acknowledge(count); });
  if (chance() % 3 != 0) take(side, target.data(), side.received.read(target.data(), target.size()));
}

void lie(Side& side, std::mt19937_64& chance) {
  try {
    side.sent.resume(uint64_t{1} << (40 + chance() % 20));
    check(false, "an impossible count was taken");
  } catch (const WireError&) {
    ++refused;
  }
}

}  // namespace

int main(int, char** arguments) {
  std::mt19937_64 chance(std::strtoull(arguments[2], nullptr, 10));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[1]));
  long breaks = 0;
  while (std::chrono::steady_clock::now() < until) {
    const uint64_t one = chance(), other = chance();
    Side client(one, other), worker(other, one);
    std::deque<uint8_t> up, down;
    for (int turn = 0; turn < 2000; ++turn) {
      const auto room = [&chance](const std::deque<uint8_t>& way) { return way.size() > 200'000 ? 0 : chance() % 100'000; };
      if (chance() % 2 == 0) write(client, up, room(up), true, chance);
      if (chance() % 2 == 0) write(worker, down, room(down), false, chance);
      if (chance() % 2 == 0) read(worker, up, chance);
      if (chance() % 2 == 0) read(client, down, chance);
      if (chance() % 37 != 0) continue;
      ++breaks;  // each side may have taken some of what was on its way
      lie(chance() % 2 == 0 ? client : worker, chance);
      up.clear();
      down.clear();
      const uint64_t at_client = client.received.resume();
      worker.sent.resume(at_client);
      client.sent.resume(worker.received.resume());
    }
    check(client.read > 0 && worker.read > 0, "nothing was read");
  }
  std::printf("%ld %ld\n", breaks, refused);
}
