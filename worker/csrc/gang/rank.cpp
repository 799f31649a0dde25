#include "gang/rank.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include <torch/headeronly/version.h>

namespace forebay::worker {

namespace {

constexpr auto kMeetingPatience = std::chrono::seconds(120);  // an accelerator's libraries are loaded meanwhile
constexpr auto kSilenceMax = std::chrono::minutes(10);  // of another host that acknowledges nothing
constexpr auto kKnock = std::chrono::milliseconds(20);
constexpr size_t kBatchBytes = size_t{64} << 10;  // commands sent together
constexpr size_t kFreedTogether = 4096;
constexpr uint64_t kReadsAhead = 8;

int64_t chunk(int64_t bytes) { return std::min<int64_t>(bytes, wire::kChunkBytesMax); }

}  // namespace

void Rank::lose(const std::string& why) const {
  throw RankLost("device " + std::to_string(number_ + 1) + " of this session " + why);
}

void Rank::wait(int socket, short events) const {
  if (!wait_(socket, events)) throw RankLost("this session's worker is to end");
}

void Rank::connect() {
  const auto until = Clock::now() + kMeetingPatience;
  while (!socket_) {
    try {
      socket_ = begin_connect(where_.address);
    } catch (const std::system_error& error) {
      if (Clock::now() >= until) lose(std::string("cannot be reached: ") + error.what());
      wait(-1, 0);
      std::this_thread::sleep_for(kKnock);
    }
  }
  const unsigned patience_ms = std::chrono::milliseconds(kSilenceMax).count();
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));  // a Unix socket has no such option
  out_.command(wire::Command::kHello);
  out_.raw(&wire::kMagic, sizeof(wire::kMagic));
  out_.varint(wire::kVersion);
  out_.raw(where_.ticket.data(), where_.ticket.size());
  out_.string(TORCH_VERSION);
  send();
  if (static_cast<wire::Reply>(receive().u8()) != wire::Reply::kWelcome) lose("did not welcome this one");
}

// Commands.

void Rank::say(wire::Command command) {
  put_freed();
  if (out_.size() >= kBatchBytes) send();
  settled_ = false;
  out_.command(command);
}

void Rank::put_freed() {
  for (size_t done = 0; done < freed_.size();) {
    const size_t count = std::min(freed_.size() - done, kFreedTogether);
    if (out_.size() >= kBatchBytes) send();
    out_.command(wire::Command::kFree);
    out_.varint(count);
    for (const size_t end = done + count; done < end; ++done) out_.varint(freed_[done]);
  }
  freed_.clear();
}

void Rank::flush() {
  put_freed();
  if (out_.size() > 0) send();
}

void Rank::call(uint64_t number, const Definition& definition, uint64_t op, const Definition& op_definition, const std::vector<wire::Word>& kinds,
                const wire::Words& words) {
  const auto known_op = operators_.try_emplace(op, operators_.size());
  if (known_op.second) {
    say(wire::Command::kOperator);
    out_.raw(op_definition.encoded.data(), op_definition.encoded.size());
  }
  if (templates_.size() == wire::kTemplatesMax) forget();
  const auto known = templates_.try_emplace(number, templates_.size());
  if (known.second) {
    say(wire::Command::kTemplate);
    out_.varint(known_op.first->second);
    out_.raw(definition.encoded.data(), definition.encoded.size());
  }
  say(wire::Command::kCall);
  out_.varint(known.first->second);
  for (size_t index = 0; index < kinds.size(); ++index) wire::put_word(out_, kinds[index], words[index]);
  ++calls_;
}

void Rank::forget() {
  if (templates_.empty()) return;
  say(wire::Command::kForget);
  templates_.clear();
}

void Rank::renumber() {
  if (operators_.empty()) return;
  say(wire::Command::kRenumber);
  operators_.clear();
  templates_.clear();
}

void Rank::settings(uint64_t bits) {
  say(wire::Command::kSettings);
  out_.varint(bits);
}

void Rank::limit(int64_t bytes) {
  if (limit_bytes_ == bytes) return;
  limit_bytes_ = bytes;
  say(wire::Command::kLimit);
  out_.varint(static_cast<uint64_t>(bytes));
}

void Rank::allocate(uint64_t id, int64_t bytes) {
  say(wire::Command::kAllocate);
  out_.varint(id);
  out_.varint(static_cast<uint64_t>(bytes));
}

void Rank::write(uint64_t id, int64_t offset, const uint8_t* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t size = chunk(bytes - done);
    flush();
    say(wire::Command::kWrite);
    out_.varint(id);
    out_.varint(static_cast<uint64_t>(offset + done));
    out_.varint(static_cast<uint64_t>(size));
    send(data + done, static_cast<size_t>(size));
    done += size;
  }
}

void Rank::copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes) {
  say(wire::Command::kCopy);
  out_.varint(target);
  out_.varint(static_cast<uint64_t>(target_offset));
  out_.varint(source);
  out_.varint(static_cast<uint64_t>(source_offset));
  out_.varint(static_cast<uint64_t>(bytes));
}

void Rank::member(uint64_t group, size_t rank, const RankAddress& where) {
  say(wire::Command::kMember);
  out_.varint(group);
  out_.varint(rank);
  out_.string(where.address);
  out_.raw(where.ticket.data(), where.ticket.size());
}

void Rank::reduce_each(uint64_t group, const std::vector<Reduction>& each) {
  say(wire::Command::kReduceEach);
  out_.varint(group);
  out_.varint(each.size());
  for (const auto& one : each) {
    out_.u8(one.dtype);
    out_.u8(static_cast<uint8_t>(one.reduction));
    out_.varint(one.id);
    out_.varint(0);  // from its beginning
    out_.varint(static_cast<uint64_t>(one.bytes));
  }
  ++calls_;
}

void Rank::exchange(uint64_t group, const std::vector<Message>& sent, const std::vector<Message>& received) {
  say(wire::Command::kExchange);
  out_.varint(group);
  out_.u8(static_cast<uint8_t>(wire::Collective::kMessage));
  for (const auto* messages : {&sent, &received}) {
    out_.varint(messages->size());
    for (const auto& message : *messages) {
      out_.varint(message.member);
      out_.varint(message.id);
      out_.varint(0);  // from its beginning
      out_.varint(static_cast<uint64_t>(message.bytes));
    }
  }
  ++calls_;
}

void Rank::part(uint64_t group) {
  say(wire::Command::kPart);
  out_.varint(group);
}

// Answers.

RankAddress Rank::open_door(uint64_t group, size_t rank, size_t size, uint64_t patience_ms) {
  say(wire::Command::kDoor);
  out_.varint(++request_);
  for (const uint64_t number : {group, uint64_t{rank}, uint64_t{size}, patience_ms}) out_.varint(number);
  send();
  wire::Reader in = receive();
  if (static_cast<wire::Reply>(in.u8()) != wire::Reply::kDoor || in.varint() != request_) lose("lets no other device in");
  RankAddress where{in.string(), {}};
  std::memcpy(where.ticket.data(), in.raw(where.ticket.size()), where.ticket.size());
  return where;
}

std::optional<Failure> Rank::settle() {
  if (settled_) return std::nullopt;
  say(wire::Command::kSync);
  out_.varint(++request_);
  send();
  while (true) {
    wire::Reader in = receive();
    const auto reply = static_cast<wire::Reply>(in.u8());
    const uint64_t request = in.varint();
    if (request != 0 && request != request_) lose("answered what nobody asked");
    if (reply == wire::Reply::kDone) {
      settled_ = true;
      return std::nullopt;
    }
    if (reply != wire::Reply::kFailure) lose("answered what is no answer");
    if (request == 0) continue;  // the answer says it again
    Failure failure{0, wire::FailureCode::kOperator, 0, "", "", ""};
    const uint64_t number = in.varint();
    failure.code = static_cast<wire::FailureCode>(in.u8());
    failure.sequence = in.u64();
    failure.op = in.string();
    failure.message = in.string(wire::kMessageBytesMax);
    failure.inputs = in.string(wire::kMessageBytesMax);
    out_.command(wire::Command::kHeard);
    out_.varint(number);
    settled_ = true;
    return failure;
  }
}

void Rank::read(const std::vector<Range>& ranges) {
  std::vector<Range> pieces;
  for (const auto& range : ranges) {
    for (int64_t done = 0; done < range.bytes; done += pieces.back().bytes) {
      pieces.push_back({range.id, range.offset + done, chunk(range.bytes - done), range.target + done});
    }
  }
  const uint64_t first = request_ + 1;
  put_freed();
  size_t asked = 0;
  for (size_t answered = 0; answered < pieces.size(); ++answered) {
    for (; asked < pieces.size() && asked < answered + kReadsAhead; ++asked) {
      out_.command(wire::Command::kRead);
      out_.varint(++request_);
      out_.varint(pieces[asked].id);
      out_.varint(static_cast<uint64_t>(pieces[asked].offset));
      out_.varint(static_cast<uint64_t>(pieces[asked].bytes));
    }
    flush();
    receive_data(first + answered, pieces[answered].target, static_cast<size_t>(pieces[answered].bytes));
  }
}

void Rank::receive_data(uint64_t request, uint8_t* target, size_t bytes) {
  wire::Reader in = receive();
  const auto reply = static_cast<wire::Reply>(in.u8());
  if (in.varint() != request) lose("answered what nobody asked");
  if (reply == wire::Reply::kFailure) lose("cannot read what it holds");
  if (reply != wire::Reply::kData) lose("answered what is no answer");
  in.varint();  // how long it has worked
  if (in.varint() != bytes || in.left() != bytes) lose("sent another number of bytes than it was asked for");
  std::memcpy(target, in.raw(bytes), bytes);
}

// The socket.

void Rank::send(const uint8_t* payload, size_t bytes) {
  std::array<uint8_t, wire::kFrameHeaderBytes> header;
  wire::put_frame_header(header.data(), out_.size() + bytes);
  std::array<iovec, 3> parts{{{header.data(), header.size()}, {out_.bytes().data(), out_.size()}, {const_cast<uint8_t*>(payload), bytes}}};
  size_t first = 0;
  while (first < parts.size()) {
    msghdr message{};
    message.msg_iov = parts.data() + first;
    message.msg_iovlen = parts.size() - first;
    auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR && errno != ENOTCONN) lose("has ended");
    if (sent < 0) {
      wait(socket_.get(), POLLOUT);
      continue;
    }
    for (auto left = static_cast<size_t>(sent); first < parts.size(); ++first) {
      auto& part = parts[first];
      const size_t taken = std::min(left, part.iov_len);
      part.iov_base = static_cast<uint8_t*>(part.iov_base) + taken;
      part.iov_len -= taken;
      left -= taken;
      if (part.iov_len > 0) break;
    }
  }
  out_.clear();
}

wire::Reader Rank::receive() {
  if (std::exchange(holds_frame_, false)) inbox_.drop();
  while (!inbox_.is_complete()) {
    auto arrival = Inbox::Arrival::kNothing;
    spinner_.until([&] {
      arrival = inbox_.receive([this](uint8_t* target, size_t bytes) { return ::recv(socket_.get(), target, bytes, MSG_DONTWAIT); });
      return arrival != Inbox::Arrival::kNothing;
    });
    if (arrival == Inbox::Arrival::kEnd) lose("has ended");
    if (arrival == Inbox::Arrival::kNothing) wait(socket_.get(), POLLIN);
  }
  holds_frame_ = true;
  wire::Reader frame = inbox_.body_so_far();
  if (static_cast<wire::Reply>(*frame.position()) != wire::Reply::kRefused) return frame;
  frame.u8();
  lose("refused: " + frame.string(wire::kMessageBytesMax));
}

}  // namespace forebay::worker
