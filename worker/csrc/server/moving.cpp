// A session leaves this worker for another, or comes here from one.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include <torch/headeronly/version.h>

#include "server/server.h"

namespace forebay::worker {

namespace {

constexpr auto kPartingPatience = std::chrono::seconds(10);
constexpr auto kConnectPatience = std::chrono::seconds(10);

std::string hex(const Ticket& ticket) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : ticket) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// What a worker says to another that holds the image of a session.
wire::Writer fetch_of(const Ticket& ticket) {
  wire::Writer greeting;
  greeting.command(wire::Command::kFetch);
  greeting.raw(&wire::kMagic, sizeof(wire::kMagic));
  greeting.varint(wire::kVersion);
  greeting.raw(ticket.data(), ticket.size());
  greeting.string(TORCH_VERSION);
  return greeting;
}

// A channel to the worker that holds the image. `poll` waits, and obeys orders. Throws std::runtime_error.
Channel connected(const ImageSource& source, const std::function<void(std::vector<pollfd>&, Clock::time_point)>& poll) {
  const auto until = Clock::now() + kConnectPatience;
  Channel channel(begin_connect(source.address));
  const auto await = [&](short events) {
    for (pollfd ready{channel.get(), events, 0}; ::poll(&ready, 1, 0) == 0;) {
      std::vector<pollfd> polled{ready};
      if (Clock::now() >= until) throw std::runtime_error("no connection within 10 seconds");
      poll(polled, until);
    }
  };
  await(POLLOUT);
  if (source.certificate.empty()) return channel;
  channel.encrypt(source.certificate);
  for (auto greeting = channel.greet(); greeting != TlsStream::Greeting::kDone; greeting = channel.greet()) {
    if (greeting == TlsStream::Greeting::kBroken) throw std::runtime_error("the connection broke");
    await(POLLIN);
  }
  return channel;
}

}  // namespace

// Leaving: all that came before has been carried out.

void Server::leave(wire::Reader& frame) {
  frame.u8();
  const uint64_t request = frame.varint();
  const uint64_t image = frame.done() ? 0 : frame.varint();
  images_.leave(image, frame.done() ? 0 : frame.varint());
  if (!frame.done()) throw wire::WireError("commands after a LEAVE");
  session_.end_segment();
  session_.collectives().end("its session moved to another device");
  session_.settle();
  if (lease_.is_open()) session_.image().gather();
  session_.image().leave();
  lease_.rest();
  lease_.drop();
  connection_.done(request);
  // A client whose connection breaks before it has the answer comes back for it.
  const auto until = Clock::now() + kPartingPatience;
  while (connection_.is_resumable() && Clock::now() < until) {
    std::vector<pollfd> polled{{connection_.socket(), POLLIN, 0}};
    poll(polled, until);
    if (polled[0].revents != 0 && polled[0].fd == connection_.socket()) connection_.drain();
  }
  resumption_.end();
  throw Left();
}

void Server::hold() {
  connection_.close();
  holding_ = true;
  int64_t spilled = session_.storages().spilled_bytes();
  if (!session_.storages().parked()) spilled = session_.park(ParkingSpace(), spill_directory_);
  lease_.account();
  const uint64_t image = images_.keep_last();
  const Ticket ticket = fresh_ticket();
  Listener listener(any_port_of(door_address_));
  const auto held = static_cast<uint64_t>(session_.storages().used_bytes() - session_.storages().absent_bytes() + session_.storages().kept_bytes());
  session_.segments().offer_if_compiling(SessionLeaves{});
  hand_over_offers();  // before it is told where the session is
  mailbox_.report({Event::Kind::kLeft, image, held, static_cast<uint64_t>(spilled), listener.address() + " " + hex(ticket) + " " + certificate()});
  while (true) {
    Door door(listener, ticket, wire::Command::kFetch, encryption_);
    connection_.take(hear(door));
    images_.drop_base();
    try {
      session_.send_image(Packing::kAll, [this](const wire::Writer& head, const uint8_t* payload, size_t bytes) { connection_.send(head, payload, bytes); });
      mailbox_.report({Event::Kind::kFetched});
      while (true) wait(0);  // until the other has it all: what is unread would go with the connection
    } catch (const ClientLost&) {
    }
    connection_.close();
  }
}

// Coming.

void Server::fetch(const ImageSource& source) {
  try {
    connection_.take(connected(source, [this](std::vector<pollfd>& polled, Clock::time_point until) { poll(polled, until); }));
    connection_.send(fetch_of(source.ticket), nullptr, 0);
    while (!session_.image().is_whole()) fetch_frame();
  } catch (const ClientLost&) {
    throw std::runtime_error("the worker at " + source.address + " that holds this session's tensors ended the connection");
  } catch (const std::exception& error) {
    throw std::runtime_error("the session's tensors cannot be fetched from " + source.address + ": " + error.what());
  }
  connection_.close();
  connection_.inbox() = Inbox();
  // If the session leaves again before its segments have come here, their libraries go along as they are.
  const auto& libraries = session_.image().libraries();
  if (!libraries.empty()) session_.segments().offer_if_compiling(LibrariesImported{libraries});
  hand_over_offers();
}

void Server::fetch_frame() {
  while (!connection_.inbox().body_size() || (!connection_.inbox().is_complete() && connection_.inbox().body_so_far().left() < 1)) receive();
  const size_t bytes = *connection_.inbox().body_size();
  if (*connection_.inbox().body_so_far().position() == static_cast<uint8_t>(wire::Reply::kBytes)) return fetch_bytes(bytes - 1);
  while (!connection_.inbox().is_complete()) receive();
  wire::Reader frame = connection_.inbox().body_so_far();
  session_.image().take(frame);
  connection_.inbox().drop();
}

// Receives bytes of storages where they belong.
void Server::fetch_bytes(size_t left) {
  const wire::Reader body = connection_.inbox().body_so_far();
  const uint8_t* there = body.position() + 1;
  size_t there_bytes = body.left() - 1;
  connection_.inbox().drop();  // what it holds of the frame is still in place
  while (left > 0) {
    const auto room = session_.image().room();
    if (room.bytes == 0) throw wire::WireError("more bytes than the image announces");
    size_t bytes = std::min(left, room.bytes);
    if (there_bytes > 0) {
      bytes = std::min(bytes, there_bytes);
      std::memcpy(room.data, there, bytes);
      there += bytes;
      there_bytes -= bytes;
    } else {
      bytes = connection_.receive_into(room.data, bytes);
      if (bytes == 0) {
        wait(POLLIN);
        continue;
      }
    }
    session_.image().received(bytes);
    left -= bytes;
    const auto due = pace_.note(bytes);
    for (std::vector<pollfd> nothing; Clock::now() < due;) poll(nothing, due);
  }
}

}  // namespace forebay::worker
