#include "base/door.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace forebay::worker {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);
constexpr size_t kPeersMax = 16;
constexpr size_t kHelloBytesMax = wire::kFrameHeaderBytes + 1 + 4 + 10 + wire::kTicketBytes + 10 + wire::kStringBytesMax + 10;

}  // namespace

Ticket fresh_ticket() {
  Ticket ticket;
  if (::getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) throw_errno("a ticket");
  return ticket;
}

bool same_ticket(const uint8_t* one, const Ticket& other) {
  uint8_t difference = 0;
  for (size_t index = 0; index < other.size(); ++index) difference |= static_cast<uint8_t>(one[index] ^ other[index]);
  return difference == 0;
}

std::vector<uint8_t> Door::banner() {
  wire::Writer body;
  body.reply(wire::Reply::kMeeting);
  body.raw(&wire::kMagic, sizeof(wire::kMagic));
  body.varint(wire::kVersion);
  std::vector<uint8_t> frame(wire::kFrameHeaderBytes);
  wire::put_frame_header(frame.data(), body.size());
  frame.insert(frame.end(), body.bytes().begin(), body.bytes().end());
  return frame;
}

void Door::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const auto& peer : peers_) polled.push_back({peer.channel.get(), POLLIN, 0});
}

std::optional<Clock::time_point> Door::deadline() const {
  if (peers_.empty()) return std::nullopt;
  return std::min_element(peers_.begin(), peers_.end(), [](const Peer& one, const Peer& other) { return one.deadline < other.deadline; })->deadline;
}

std::optional<Guest> Door::hear(Clock::time_point now) {
  admit_peers(now);
  for (size_t index = 0; index < peers_.size();) {
    const Verdict verdict = hear(peers_[index], now);
    if (verdict == Verdict::kWelcome) {
      Peer& peer = peers_[index];
      Guest guest{std::move(peer.channel), peer.greeting, std::move(peer.attached), peer.rank, peer.received};
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(index));
      return guest;
    }
    if (verdict == Verdict::kGone) {
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(index));
    } else {
      ++index;
    }
  }
  return std::nullopt;
}

std::vector<std::string> Door::take_refusals() { return std::exchange(refusals_, {}); }

// Whoever comes greets at once, so where too many wait, the one that has been silent longest goes.
void Door::admit_peers(Clock::time_point now) {
  for (size_t admitted = 0; admitted < kPeersMax; ++admitted) {
    Descriptor socket = listener_.accept();
    if (!socket) return;
    if (peers_.size() == kPeersMax) peers_.erase(peers_.begin());
    if (greeting_ == wire::Command::kMeet) {
      const auto said = banner();
      if (::send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(said.size())) continue;
    }
    peers_.push_back({std::move(socket), now + kPatience, {}, greeting_, {}});
  }
}

Door::Verdict Door::hear(Peer& peer, Clock::time_point now) {
  try {
    const auto secured = secure(peer);
    if (secured == TlsStream::Greeting::kBroken) return Verdict::kGone;
    if (secured == TlsStream::Greeting::kDone) {
      std::array<uint8_t, kHelloBytesMax> buffer;
      const size_t room = kHelloBytesMax - peer.heard.size();
      const bool may_attach = greeting_ == wire::Command::kMeet;  // in clear
      const auto got = may_attach ? receive_attached(peer.channel.get(), buffer.data(), room, peer.attached) : peer.channel.receive(buffer.data(), room);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return Verdict::kGone;
      if (got > 0) peer.heard.insert(peer.heard.end(), buffer.data(), buffer.data() + got);
      if (is_greeting(peer)) return Verdict::kWelcome;
    }
    if (now < peer.deadline) return Verdict::kListening;
    refuse(peer.channel, "no " + name() + " within 10 seconds");
  } catch (const std::runtime_error& error) {  // of wire.h, or of tls.h
    refuse(peer.channel, error.what());
  }
  return Verdict::kGone;
}

// The first byte tells TLS from a greeting in clear, no frame of which is of such a size (RFC 8446, section 5.1: a handshake's record).
TlsStream::Greeting Door::secure(Peer& peer) const {
  constexpr uint8_t kHandshake = 22;
  using enum TlsStream::Greeting;
  if (encryption_ == nullptr || !encryption_->tls || peer.is_secure) return kDone;
  if (!peer.channel.is_encrypted()) {
    uint8_t first = 0;
    const auto got = ::recv(peer.channel.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return kGoesOn;
    if (got <= 0) return kBroken;
    if (first != kHandshake && encryption_->is_required) {
      std::array<uint8_t, kHelloBytesMax> unread;
      peer.channel.receive(unread.data(), unread.size());  // left unread, it would take the refusal along as the socket closes
      throw wire::WireError("this worker is reached by TLS alone; install the same release on both sides");
    }
    if (first == kHandshake) peer.channel.encrypt(*encryption_->tls);
  }
  const auto greeting = peer.channel.is_encrypted() ? peer.channel.greet() : kDone;
  peer.is_secure = greeting == kDone;
  return greeting;
}

bool Door::is_greeting(Peer& peer) const {
  if (peer.heard.size() < wire::kFrameHeaderBytes) return false;
  const size_t size = wire::get_frame_header(peer.heard.data());
  if (size > kHelloBytesMax - wire::kFrameHeaderBytes) throw wire::WireError("the first frame is not a " + name());
  const size_t heard = peer.heard.size() - wire::kFrameHeaderBytes;
  if (heard < size) return false;
  wire::Reader in(peer.heard.data() + wire::kFrameHeaderBytes, size);
  peer.greeting = static_cast<wire::Command>(in.u8());
  const bool is_back = resumes_ && peer.greeting == wire::Command::kResume;
  if (peer.greeting != greeting_ && !is_back) throw wire::WireError("the first frame is not a " + name());
  uint32_t magic;
  std::memcpy(&magic, in.raw(sizeof(magic)), sizeof(magic));
  if (magic != wire::kMagic) throw wire::WireError("the first frame is not a " + name());
  const uint64_t version = in.varint();
  if (version != wire::kVersion) {
    throw wire::WireError("the other side speaks version " + std::to_string(version) + " of the command stream, the worker version " +
                          std::to_string(wire::kVersion) + "; install the same release on both sides");
  }
  if (!same_ticket(in.raw(wire::kTicketBytes), ticket_)) throw wire::WireError("the ticket is not this session's");
  in.string();
  if (greeting_ == wire::Command::kMeet) peer.rank = static_cast<size_t>(in.bounded(wire::kMembersMax, "a rank"));
  if (is_back) peer.received = in.varint();
  if (!in.done()) throw wire::WireError("a " + name() + " comes alone in its frame");
  if (heard > size) throw wire::WireError("commands before the WELCOME");
  return true;
}

std::string Door::name() const {
  if (greeting_ == wire::Command::kMeet) return "MEET";
  return greeting_ == wire::Command::kHello ? "HELLO" : "FETCH";
}

void Door::refuse(Channel& peer, const std::string& sentence) {
  wire::Writer body;
  body.reply(wire::Reply::kRefused);
  body.string(sentence);
  std::vector<uint8_t> frame(wire::kFrameHeaderBytes);
  wire::put_frame_header(frame.data(), body.size());
  frame.insert(frame.end(), body.bytes().begin(), body.bytes().end());
  [[maybe_unused]] const auto sent = peer.send(frame.data(), frame.size());  // a courtesy
  refusals_.push_back(sentence);
}

}  // namespace forebay::worker
