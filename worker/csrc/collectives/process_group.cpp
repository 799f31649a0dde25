#include "collectives/process_group.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

#include <torch/headeronly/version.h>

namespace forebay::worker {

namespace {

constexpr auto kKnockAgain = std::chrono::milliseconds(20);
constexpr size_t kSentenceBytesMax = 1024;  // of a member that says why it ends the group
constexpr int kSocketBytes = 4 << 20;
constexpr uint8_t kEnds = 255;  // in place of a collective: a sentence follows
constexpr uint8_t kElsewhere = 128;  // beside a collective: its bytes do not follow
constexpr const char* kOffers = " via ";  // between an address, and what the device there offers
constexpr size_t kAnswerBytes = wire::kFrameHeaderBytes + 1 + wire::kTicketBytes;

const char* collective_name(uint8_t what) {
  switch (static_cast<wire::Collective>(what & ~kElsewhere)) {
    case wire::Collective::kBroadcast:
      return "broadcast";
    case wire::Collective::kAllReduce:
      return "all_reduce";
    case wire::Collective::kReduce:
      return "reduce";
    case wire::Collective::kAllGather:
      return "all_gather";
    case wire::Collective::kGather:
      return "gather";
    case wire::Collective::kScatter:
      return "scatter";
    case wire::Collective::kReduceScatter:
      return "reduce_scatter";
    case wire::Collective::kAllToAll:
      return "all_to_all";
    case wire::Collective::kMessage:
      return "send and recv";
    case wire::Collective::kBarrier:
      return "barrier";
  }
  return "something unknown";
}

std::vector<uint8_t> framed(const wire::Writer& body) {
  std::vector<uint8_t> frame(wire::kFrameHeaderBytes);
  wire::put_frame_header(frame.data(), body.size());
  frame.insert(frame.end(), body.bytes().begin(), body.bytes().end());
  return frame;
}

// Whole, or not at all: what is said while members meet fits an empty socket. `attached`: a descriptor that goes with it, or -1.
bool said(int socket, const std::vector<uint8_t>& frame, int attached) {
  iovec part{const_cast<uint8_t*>(frame.data()), frame.size()};
  alignas(cmsghdr) AttachmentRoom room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (attached >= 0) attach(message, attached, room);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(frame.size());
}

bool is_unix(const std::string& address) { return address.rfind("unix:", 0) == 0; }

void tune(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // a Unix socket has no such option
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof(kSocketBytes));
}

std::string in_seconds(std::chrono::milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

}  // namespace

// Before each message's bytes; in the byte order of the hosts, which compute on the same tensors.
struct ProcessGroup::Header {
  uint32_t magic = wire::kMagic;
  uint8_t what = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t names_rank = 0;  // of a sentence that says why the group ends: it says whose fault it is, and is passed on as it is
  uint64_t number = 0;  // of the message, among those that went this way
  uint64_t bytes = 0;

  std::array<uint8_t, 24> packed() const {
    std::array<uint8_t, 24> bytes_of;
    static_assert(sizeof(Header) == 24);
    std::memcpy(bytes_of.data(), this, sizeof(Header));
    return bytes_of;
  }
  static Header of(const std::array<uint8_t, 24>& packed) {
    Header header;
    std::memcpy(&header, packed.data(), sizeof(header));
    return header;
  }
  static Header of(const Subject& subject) {
    Header header;
    header.what = static_cast<uint8_t>(subject.what);
    header.dtype = subject.dtype;
    header.reduction = static_cast<uint8_t>(subject.reduction);
    return header;
  }
};

ProcessGroup::ProcessGroup(GroupHost& host, size_t rank, size_t size, std::chrono::milliseconds patience)
    : host_(host), rank_(rank), patience_(patience), offer_(host.library() == nullptr ? "" : host.library()->offer()), listener_(host.door_address()), ticket_(fresh_ticket()), door_(listener_, ticket_, wire::Command::kMeet), members_(size) {}

std::string ProcessGroup::address() const { return listener_.address() + (offer_.empty() ? "" : kOffers + offer_); }

void ProcessGroup::know(size_t member, std::string address, const Ticket& ticket) {
  if (member >= size() || member == rank_) throw wire::WireError("member " + std::to_string(member) + " of a process group of " + std::to_string(size()));
  Member& other = members_[member];
  if (other.meeting != Meeting::kUnknown) throw wire::WireError("member " + std::to_string(member) + " of a process group comes twice");
  if (const auto end = address.rfind(kOffers); end != std::string::npos) {
    other.offer = address.substr(end + std::strlen(kOffers));
    address.resize(end);
  }
  other.address = std::move(address);
  other.ticket = ticket;
  other.meeting = Meeting::kApart;
}

void ProcessGroup::give_up(const std::string& why, bool names_rank) {
  end(why, names_rank);
  throw GroupEnded(ended_);
}

void ProcessGroup::lose(size_t member, const std::string& why) { give_up("rank " + std::to_string(member) + " of the process group " + why, true); }

void ProcessGroup::miss(size_t member, const std::string& why) {
  const auto until = Clock::now() + host_.word_patience();
  for (std::vector<pollfd> nothing; Clock::now() < until;) host_.wait_for(nothing, until);
  lose(member, why);
}

void ProcessGroup::end(const std::string& why, bool names_rank) noexcept {
  if (!ended_.empty()) return;
  ended_ = why.substr(0, kSentenceBytesMax);
  listener_.close();
  guests_.clear();
  Header header;
  header.what = kEnds;
  header.names_rank = names_rank;
  header.bytes = ended_.size();
  for (Member& member : members_) {
    // Else it would be taken for bytes of a tensor.
    const bool between = member.channel.is_shared() || member.outgoing.empty() || member.outgoing.front().done == 0;
    if (member.meeting == Meeting::kMet && between) {
      const auto packed = header.packed();
      std::array<iovec, 2> parts{{{const_cast<uint8_t*>(packed.data()), packed.size()}, {ended_.data(), ended_.size()}}};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      [[maybe_unused]] const auto sent = ::sendmsg(member.channel.socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);  // its end is heard of in any case
    }
    if (member.channel) {
      ::shutdown(member.channel.socket(), SHUT_RDWR);
      parted_.push_back(member.channel.close());
    }
    member = Member();
  }
  active_.clear();
}

void ProcessGroup::wait_for(std::vector<pollfd>& polled, Clock::time_point until) {
  if (is_disturbed_) return host_.wait_for(polled, until);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
}

// Meeting: of two members the higher one comes to the lower one's door.

void ProcessGroup::begin(size_t number) {
  Member& member = members_[number];
  try {
    member.channel = MemberChannel(begin_connect(member.address));
    tune(member.channel.socket());
    member.meeting = Meeting::kListening;
  } catch (const std::system_error& error) {
    if (error.code().value() != EAGAIN) miss(number, "cannot be reached");
  } catch (const std::invalid_argument&) {
    miss(number, "cannot be reached");
  }
}

bool ProcessGroup::hear_exactly(size_t number, size_t bytes) {
  Member& member = members_[number];
  std::array<uint8_t, 64> buffer;
  const auto got = receive_attached(member.channel.socket(), buffer.data(), bytes - member.heard.size(), member.attached);
  if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return false;
  if (got <= 0) miss(number, "cannot be reached");
  member.heard.insert(member.heard.end(), buffer.data(), buffer.data() + got);
  return member.heard.size() == bytes;
}

// Whoever listens there must speak first: nothing is said to what is no group's door.
void ProcessGroup::hear_banner(size_t number) {
  const auto banner = Door::banner();
  if (!hear_exactly(number, banner.size())) return;
  Member& member = members_[number];
  if (member.heard != banner) miss(number, "cannot be reached");
  member.heard.clear();
  wire::Writer greeting;
  greeting.command(wire::Command::kMeet);
  greeting.raw(&wire::kMagic, sizeof(wire::kMagic));
  greeting.varint(wire::kVersion);
  greeting.raw(member.ticket.data(), member.ticket.size());
  greeting.string(TORCH_VERSION);
  greeting.varint(rank_);
  if (!said(member.channel.socket(), framed(greeting), is_unix(member.address) ? member.channel.offer() : -1)) miss(number, "cannot be reached");
  member.meeting = Meeting::kGreeted;
}

void ProcessGroup::hear_answer(size_t number) {
  if (!hear_exactly(number, kAnswerBytes)) return;
  Member& member = members_[number];
  wire::Reader in(member.heard.data(), member.heard.size());
  const size_t bytes = wire::get_frame_header(in.raw(wire::kFrameHeaderBytes));
  const bool is_answer = bytes == in.left() && in.u8() == static_cast<uint8_t>(wire::Reply::kMet);
  if (!is_answer || !same_ticket(in.raw(wire::kTicketBytes), ticket_)) lose(number, "is not what this one was told of");
  member.heard.clear();
  try {
    member.channel.share(std::move(member.attached));
  } catch (const std::exception&) {
    lose(number, "shares no memory");
  }
  member.meeting = Meeting::kMet;
}

void ProcessGroup::greet(size_t number, Descriptor attached) {
  Member& member = members_[number];
  const int offered = attached ? member.channel.offer() : -1;
  try {
    member.channel.share(std::move(attached));
  } catch (const std::exception&) {
    lose(number, "shares no memory");
  }
  wire::Writer answer;
  answer.reply(wire::Reply::kMet);
  answer.raw(member.ticket.data(), member.ticket.size());
  if (!said(member.channel.socket(), framed(answer), offered)) miss(number, "is gone");
  member.meeting = Meeting::kMet;
}

void ProcessGroup::welcome_guests() {
  while (auto guest = door_.hear(Clock::now())) guests_.push_back(std::move(*guest));
  door_.take_refusals();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const bool may_come = guest->rank > rank_ && guest->rank < size();
    if (may_come && members_[guest->rank].meeting == Meeting::kUnknown) {
      ++guest;
      continue;
    }
    if (may_come && members_[guest->rank].meeting == Meeting::kApart) {
      members_[guest->rank].channel = MemberChannel(guest->channel.take_socket());
      tune(members_[guest->rank].channel.socket());
      greet(guest->rank, std::move(guest->attached));
    }
    guest = guests_.erase(guest);
  }
}

bool ProcessGroup::is_met(size_t number) {
  Member& member = members_[number];
  if (member.meeting == Meeting::kUnknown) lose(number, "was not told of");
  if (number < rank_) {
    if (member.meeting == Meeting::kApart) begin(number);
    if (member.meeting == Meeting::kListening) hear_banner(number);
    if (member.meeting == Meeting::kGreeted) hear_answer(number);
  }
  return member.meeting == Meeting::kMet;
}

void ProcessGroup::meet(const std::vector<size_t>& wanted) {
  std::optional<Clock::time_point> deadline;
  while (true) {
    welcome_guests();
    std::vector<size_t> missing;
    for (const size_t number : wanted) {
      if (!is_met(number)) missing.push_back(number);
    }
    if (missing.empty()) return close_door();
    if (!deadline) deadline = Clock::now() + patience_;
    if (Clock::now() >= *deadline) lose(missing.front(), "did not come within " + in_seconds(patience_));
    std::vector<pollfd> polled;
    door_.add_to(polled);
    auto until = *deadline;
    if (const auto patience = door_.deadline()) until = std::min(until, *patience);
    for (const size_t number : missing) {
      const Member& member = members_[number];
      if (member.channel) polled.push_back({member.channel.socket(), POLLIN, 0});
      else if (number < rank_) until = std::min(until, Clock::now() + kKnockAgain);
    }
    wait_for(polled, until);
  }
}

void ProcessGroup::close_door() {
  const auto met = std::count_if(members_.begin(), members_.end(), [](const Member& member) { return member.meeting == Meeting::kMet; });
  if (met + 1 < static_cast<std::ptrdiff_t>(size())) return;
  listener_.close();
  guests_.clear();
}

// Messages.

void ProcessGroup::begin_exchange(std::vector<size_t> members) {
  if (!ended_.empty()) throw GroupEnded(ended_);
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  members.erase(std::remove(members.begin(), members.end(), rank_), members.end());
  if (!members.empty()) meet(members);
  active_ = std::move(members);
}

void ProcessGroup::exchange(const Subject& subject, const std::vector<Parcel>& sent, const std::vector<Parcel>& received) {
  std::vector<size_t> members;
  for (const auto* parcels : {&sent, &received}) {
    for (const auto& parcel : *parcels) members.push_back(parcel.member);
  }
  begin_exchange(std::move(members));
  deliver(subject, sent, received);
  transfer();
}

void ProcessGroup::announce(const Subject& subject, const std::vector<size_t>& members, const std::vector<Parcel>& sent, const std::vector<Parcel>& received) {
  begin_exchange(members);
  const Header header = Header::of(subject);
  for (const size_t member : active_) {
    const Parcel nothing{member, nullptr, 0};
    const auto each = [member, &nothing](const std::vector<Parcel>& parcels, const auto& visit) {
      bool any = false;
      for (const auto& parcel : parcels) {
        if (parcel.member == member) any = true, visit(parcel);
      }
      if (!any) visit(nothing);
    };
    each(sent, [&](const Parcel& parcel) { post(Way::kOut, header, parcel, Bytes::kElsewhere); });
    each(received, [&](const Parcel& parcel) { post(Way::kIn, header, parcel, Bytes::kElsewhere); });
  }
  transfer();
}

void ProcessGroup::post(Way way, Header header, const Parcel& parcel, Bytes bytes) {
  Member& member = members_[parcel.member];
  header.number = way == Way::kOut ? member.sent++ : member.received++;
  header.bytes = parcel.bytes;
  if (bytes == Bytes::kElsewhere) header.what |= kElsewhere;
  const size_t follow = bytes == Bytes::kElsewhere ? 0 : parcel.bytes;
  if (way == Way::kOut) member.outgoing.push_back({header.packed(), parcel.data, follow, 0});
  else member.incoming.push_back({header.packed(), parcel.data, follow, 0});
}

const ProcessGroup::Hosts& ProcessGroup::hosts() {
  if (!hosts_.empty()) return hosts_;
  std::vector<uint64_t> firsts(size());  // of those that each member shares memory with
  std::vector<Parcel> sent, received;
  const auto bytes_of = [&](size_t member) { return reinterpret_cast<uint8_t*>(&firsts[member]); };
  std::vector<size_t> others;
  for (size_t member = 0; member < size(); ++member) {
    if (member != rank_) others.push_back(member);
  }
  meet(others);
  firsts[rank_] = rank_;
  for (const size_t member : others) {
    if (members_[member].channel.is_shared()) firsts[rank_] = std::min<uint64_t>(firsts[rank_], member);
    sent.push_back({member, bytes_of(rank_), sizeof(uint64_t)});
    received.push_back({member, bytes_of(member), sizeof(uint64_t)});
  }
  exchange({wire::Collective::kAllGather}, sent, received);
  std::map<uint64_t, std::vector<size_t>> found;
  for (size_t member = 0; member < size(); ++member) found[firsts[member]].push_back(member);
  for (auto& [first, members] : found) hosts_.push_back(std::move(members));
  return hosts_;
}

void ProcessGroup::deliver(const Subject& subject, const std::vector<Parcel>& sent, const std::vector<Parcel>& received) {
  const Header header = Header::of(subject);
  std::vector<const Parcel*> own;
  for (const auto& parcel : sent) {
    if (parcel.member == rank_) {
      own.push_back(&parcel);
      continue;
    }
    post(Way::kOut, header, parcel, Bytes::kFollow);
  }
  size_t taken = 0;
  for (const auto& parcel : received) {
    if (parcel.member == rank_) {
      if (taken == own.size() || own[taken]->bytes != parcel.bytes) give_up("a message of this rank to itself that it does not send", false);
      if (parcel.bytes > 0) std::memmove(parcel.data, own[taken]->data, parcel.bytes);
      ++taken;
      continue;
    }
    post(Way::kIn, header, parcel, Bytes::kFollow);
  }
}

bool ProcessGroup::is_done() const {
  return std::all_of(active_.begin(), active_.end(), [this](size_t number) { return members_[number].outgoing.empty() && members_[number].incoming.empty(); });
}

void ProcessGroup::transfer() {
  auto moved_at = Clock::now();
  const auto move_all = [this] {
    bool moved = false;
    for (const size_t number : active_) moved = move(number) || moved;
    return moved;
  };
  while (!is_done()) {
    std::vector<pollfd> polled;
    if (spinner_.until(move_all) || (polled = doze(), move_all())) {
      moved_at = Clock::now();
      continue;
    }
    if (Clock::now() - moved_at >= patience_) {
      const auto silent = std::find_if(active_.begin(), active_.end(), [this](size_t number) { return !members_[number].incoming.empty() || !members_[number].outgoing.empty(); });
      const Member& member = members_[*silent];
      const uint8_t what = Header::of(member.incoming.empty() ? member.outgoing.front().header : member.incoming.front().expected).what;
      lose(*silent, std::string("did not take part in ") + collective_name(what) + " within " + in_seconds(patience_));
    }
    wait_for(polled, moved_at + patience_);
    for (const size_t number : active_) {
      const auto ready = std::find_if(polled.begin(), polled.end(), [&](const pollfd& one) { return one.fd == members_[number].channel.socket(); });
      if (ready != polled.end()) hear(number, ready->revents);
    }
  }
}

std::vector<pollfd> ProcessGroup::doze() {
  std::vector<pollfd> polled;
  for (const size_t number : active_) {
    Member& member = members_[number];
    const short events = member.channel.sleep(!member.outgoing.empty(), !member.incoming.empty());
    if (events != 0) polled.push_back({member.channel.socket(), events, 0});
  }
  return polled;
}

void ProcessGroup::hear(size_t number, short events) {
  Member& member = members_[number];
  if (!member.channel.is_shared()) {
    if (events & POLLRDHUP && member.incoming.empty()) hear_end(number);
  } else if (events != 0 && member.channel.hears_end()) {
    move(number);  // what it sent before
    if (!member.incoming.empty() || !member.outgoing.empty()) hear_end(number);
  }
}

bool ProcessGroup::move(size_t number) {
  try {
    const bool sent = send_some(number), moved = receive_some(number) || sent;
    if (moved) members_[number].channel.wake();
    return moved;
  } catch (const wire::WireError&) {
    lose(number, "broke the protocol");
  }
}

bool ProcessGroup::send_some(size_t number) {
  Member& member = members_[number];
  bool moved = false;
  while (!member.outgoing.empty()) {
    Outgoing& next = member.outgoing.front();
    const size_t head = std::min(next.done, next.header.size()), body = next.done - head;
    std::array<iovec, 2> parts{{{next.header.data() + head, next.header.size() - head}, {const_cast<uint8_t*>(next.data) + body, next.bytes - body}}};
    const auto sent = member.channel.send(parts);
    if (!sent) {
      receive_some(number);  // it may have said why
      hear_end(number);
    }
    if (*sent == 0) return moved;
    moved = true;
    next.done += *sent;
    if (next.done < next.header.size() + next.bytes) continue;
    member.outgoing.pop_front();
  }
  return moved;
}

bool ProcessGroup::receive_some(size_t number) {
  Member& member = members_[number];
  bool moved = false;
  while (!member.incoming.empty()) {
    Incoming& next = member.incoming.front();
    const size_t head = member.header.size();
    const bool in_head = next.done < head;
    uint8_t* target = in_head ? member.header.data() + next.done : next.data + (next.done - head);
    const size_t room = in_head ? head - next.done : next.bytes - (next.done - head);
    if (room > 0) {
      const auto got = member.channel.receive(target, room);
      if (!got) miss(number, "is gone: its process ended, or lost its device");
      if (*got == 0) return moved;
      next.done += *got;
      moved = true;
      if (in_head && next.done == head) check_header(number);
    }
    if (next.done == head + next.bytes) member.incoming.pop_front();
  }
  return moved;
}

void ProcessGroup::check_header(size_t number) {
  Member& member = members_[number];
  const auto& expected = member.incoming.front().expected;
  if (member.header == expected) return;
  const Header told = Header::of(member.header), wanted = Header::of(expected);
  if (told.magic == wire::kMagic && told.what == kEnds) end_as(number, told);
  if (told.magic != wire::kMagic || told.number != wanted.number) lose(number, "broke the protocol");
  lose(number, std::string("called ") + collective_name(told.what) + " with " + std::to_string(told.bytes) + " bytes for this rank (type " + std::to_string(told.dtype) + ", reduction " +
                   std::to_string(told.reduction) + ") where this one called " + collective_name(wanted.what) + " with " + std::to_string(wanted.bytes) + " bytes (type " +
                   std::to_string(wanted.dtype) + ", reduction " + std::to_string(wanted.reduction) + ")");
}

void ProcessGroup::hear_end(size_t number) {
  Member& member = members_[number];
  const auto got = ::recv(member.channel.socket(), member.header.data(), member.header.size(), MSG_DONTWAIT);
  const Header told = Header::of(member.header);
  if (got == static_cast<ssize_t>(member.header.size()) && told.magic == wire::kMagic && told.what == kEnds) end_as(number, told);
  miss(number, "is gone: its process ended, or lost its device");
}

bool ProcessGroup::has_left(size_t number) {
  if (!ended_.empty()) throw GroupEnded(ended_);
  MemberChannel& channel = members_[number].channel;
  if (channel.is_shared()) return channel.hears_end();
  Header told;
  const auto got = ::recv(channel.socket(), &told, sizeof(told), MSG_DONTWAIT | MSG_PEEK);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  return got == 0 || (got == sizeof(told) && told.magic == wire::kMagic && told.what == kEnds);
}

void ProcessGroup::leave_after(size_t member) {
  move(member);  // what it sent before
  hear_end(member);
}

void ProcessGroup::end_as(size_t number, const Header& told) {
  std::string sentence(std::min<size_t>(told.bytes, kSentenceBytesMax), ' ');
  const auto got = ::recv(members_[number].channel.socket(), sentence.data(), sentence.size(), MSG_DONTWAIT);
  sentence.resize(got < 0 ? 0 : static_cast<size_t>(got));
  give_up(told.names_rank ? sentence : "rank " + std::to_string(number) + " ended the process group: " + sentence, true);
}

}  // namespace forebay::worker
