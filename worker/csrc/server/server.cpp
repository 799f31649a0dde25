#include "server/server.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <forebay/checkpoints.h>
#include <torch/headeronly/version.h>

#include "base/memory.h"
#include "device/bernoulli.h"
#include "device/division.h"

namespace forebay::worker {

namespace {

constexpr size_t kDirectUploadBytes = size_t{64} << 10;  // payloads below go through the inbox
constexpr size_t kWriteHeaderBytesMax = 1 + 3 * 10;
constexpr auto kGoesOn = std::chrono::milliseconds(1);  // so soon after an answer its client says what comes next
constexpr auto kLinger = std::chrono::seconds(2);
const std::string kBetweenDevices = "copying between devices";  // where an operator would be told
constexpr auto kLibraryPatience = std::chrono::seconds(2);  // of a session whose steps wait until it is known whether a segment has a library
constexpr auto kForGood = std::chrono::hours(24 * 365);
constexpr auto kOutside = std::chrono::milliseconds(wire::kGraceMsMax);  // the pool ends the session of a client that is away for longer than it waits

// `grace`: how long a client that comes back is waited for.
void welcome(const Device& device, Session& session, Connection& connection, Clock::duration grace, const Images& images) {
  wire::Writer head;
  head.reply(wire::Reply::kWelcome);
  head.varint(wire::kVersion);
  head.string(TORCH_VERSION);
  head.string(device.kind());
  head.string(device.model());
  head.varint(static_cast<uint64_t>(session.storages().limit_bytes()));
  head.string(session.user_code().kernels.refusal());
  if (!connection.is_untouched()) grace = {};
  head.varint(static_cast<uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(grace).count()));
  head.u8(images.are_kept());
  head.u8(session.checkpoints().extent(images.are_kept()));
  wire::put_session_images(head, images.session_images());
  connection.send(head, nullptr, 0);
}

uint64_t bytes(int64_t count) { return static_cast<uint64_t>(count); }

// None where that is past.
timespec time_until(Clock::time_point time) {
  const auto left = std::max(Clock::duration{}, time - Clock::now());
  const auto whole = std::chrono::floor<std::chrono::seconds>(left);
  return {whole.count(), std::chrono::nanoseconds(left - whole).count()};
}

Clock::duration seconds(double value) {
  const auto most = std::chrono::duration<double>(kForGood);
  return std::chrono::duration_cast<Clock::duration>(std::min(std::chrono::duration<double>(value), most));
}

}  // namespace

Server::Server(Device device, const std::string& address, std::optional<int> threads, std::string spill_directory, std::vector<RankAddress> others, Homes homes,
               double reconnect_seconds, Encryption encryption)
    : device_(std::move(device)),
      threads_(threads),
      spill_directory_(std::move(spill_directory)),
      door_address_(address),
      others_(std::move(others)),
      homes_(homes),
      listener_(address),
      encryption_(std::move(encryption)),
      connection_(listener_.is_unix(), lease_, [this] { wait(POLLOUT); }),
      resumption_(listener_, encryption_, connection_, mailbox_, seconds(reconnect_seconds), [this] { welcome(device_, session_, connection_, resumption_.grace(), images_); }),
      session_(device_, connection_, *this),
      lease_(device_, session_.storages(), mailbox_) {
  session_.user_code().programs.call_back_by(callbacks_);
  outlive_integer_divisions();
  draw_bernoulli_by_vectors();
}

Server::~Server() {
  mailbox_.order(orders::End{});
  if (thread_.joinable()) thread_.join();
}

// The thread.

void Server::assign(const Ticket& ticket, int64_t limit_bytes, double idle_release_seconds, Origin origin, ImageFolder images, double word_seconds, bool is_outside) {
  is_outside_ = is_outside;
  if (is_outside) resumption_.wait_for(kOutside);
  lease_.release_after(seconds(idle_release_seconds));
  images_.keep_in(std::move(images));
  images_.begin_with(static_cast<wire::Begun>(origin.index()));  // these are in the same order
  word_patience_ = seconds(word_seconds);
  start([this, ticket, limit_bytes, origin = std::move(origin)] {
    join_others();
    session_.set_limit(limit_bytes);
    if (const auto* source = std::get_if<ImageSource>(&origin)) fetch(*source);
    if (const auto* kept = std::get_if<KeptImage>(&origin)) images_.go_on_from(kept->number);
    mailbox_.report({Event::Kind::kAssigned});
    serve(ticket);
  });
}

void Server::carry(ImageSource source, int64_t limit_bytes, int64_t bytes_per_second, ImageFolder images, uint64_t image) {
  images_.keep_in(std::move(images));
  images_.leave(image, 0);
  start([this, limit_bytes, bytes_per_second, source = std::move(source)] {
    listener_.close();  // no client comes here
    pace_.begin(bytes_per_second);
    session_.set_limit(limit_bytes);
    session_.image().stay_parked();
    fetch(source);
    hold();
  });
}

void Server::start(std::function<void()> work) {
  if (thread_.joinable()) throw std::logic_error("this worker serves a session already");
  thread_ = std::thread([this, work = std::move(work)] {
    ::pthread_setname_np(::pthread_self(), "forebay-session");
    run(work);
  });
}

void Server::run(const std::function<void()>& work) {
  try {
    device_.enter(threads_);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::NoGradGuard no_grad;
    work();
  } catch (const Ended&) {
  } catch (const std::exception& error) {
    mailbox_.report({Event::Kind::kFailed, 0, 0, 0, told_text(error.what(), wire::kMessageBytesMax)});
  }
  connection_.close();
  mailbox_.note_end();
}

void Server::join_others() {
  if (others_.empty()) return;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const auto& other : others_) {
    ranks.push_back(std::make_unique<Rank>(static_cast<int>(ranks.size()) + 1, other, [this](int socket, short events) { return wait_for_other(socket, events); }));
  }
  for (const auto& rank : ranks) rank->connect();
  session_.join(std::move(ranks), homes_, *this, rates);
  const auto& found = session_.gang().gang().rates();
  if (found.are_measured()) rates = found;
}

bool Server::wait_for_other(int socket, short events) {
  const Running::Call waiting(session_.running(), kBetweenDevices);
  std::array<pollfd, 2> polled{{{socket, events, 0}, {mailbox_.end_descriptor(), POLLIN, 0}}};
  ::poll(polled.data(), polled.size(), socket < 0 ? 0 : -1);
  return !(polled[1].revents & POLLIN);
}

void Server::serve(const Ticket& ticket) {
  try {
    admit(ticket);
    converse();
  } catch (const RankLost& error) {
    refuse(error.what(), true);
    throw;
  } catch (const wire::WireError& error) {
    session_.collectives().end(std::string("its session ended: ") + error.what());
    refuse(error.what());
  } catch (const ClientLost&) {
  } catch (const Left&) {
    hold();
  }
  resumption_.end();
  session_.collectives().end("its program ended");
  lease_.rest();
  connection_.close();
  mailbox_.report({Event::Kind::kClientGone});
  std::vector<pollfd> nothing;
  while (true) poll(nothing, lease_.idle_check());
}

void Server::admit(const Ticket& ticket) {
  Door door(listener_, ticket, wire::Command::kHello, encryption_);
  if (!encryption_.tls && ((listener_.is_unix() && !is_outside_) || resumption_.grace() == Clock::duration{})) {
    connection_.take(hear(door));
    listener_.close();
  } else {
    connection_.admit(hear(door));
    resumption_.begin(ticket);
  }
  mailbox_.report({Event::Kind::kConnected});
  welcome(device_, session_, connection_, resumption_.grace(), images_);
}

Channel Server::hear(Door& door) {
  while (true) {
    std::vector<pollfd> polled;
    door.add_to(polled);
    auto until = lease_.idle_check();
    if (const auto deadline = door.deadline()) until = until ? std::min(*until, *deadline) : *deadline;
    poll(polled, until);
    auto peer = door.hear(Clock::now());
    for (auto& sentence : door.take_refusals()) mailbox_.report({Event::Kind::kRefused, 0, 0, 0, std::move(sentence)});
    if (peer) return std::move(peer->channel);
  }
}

void Server::converse() {
  while (true) {
    while (connection_.inbox().is_complete()) {
      wire::Reader frame = connection_.inbox().body_so_far();
      while (!frame.done() || session_.is_following()) step(frame);
      connection_.inbox().drop();
      lease_.account();
    }
    if (can_upload_directly()) {
      upload_directly();
    } else {
      receive();
    }
  }
}

void Server::step(wire::Reader& frame) {
  if (mailbox_.has_orders()) obey();
  const bool device_work = session_.is_device_work(frame);
  if (device_work && !lease_.is_open()) {
    lease_.starve();
    return wait(0);
  }
  lease_.work();
  if (device_work) lease_.touch();
  using enum wire::Command;
  const auto command = session_.is_following() ? kFollow : static_cast<wire::Command>(*frame.position());
  if (command == kMark) {
    frame.u8();
    session_.end_segment();
    mark(frame.varint());
  } else if (command == kLeave) {
    leave(frame);
  } else if (command == kKeep) {
    images_.keep(frame);
  } else if (command == kRestore) {
    images_.restore(frame);
  } else {
    session_.execute(frame);
    images_.copy_what_came();
  }
  hand_over_offers();
  lease_.count_command();
}

void Server::mark(uint64_t epoch) {
  if (!lease_.is_open()) return lease_.mark(epoch);
  session_.settle();
  session_.checkpoints().report_dropped();
  lease_.rest();
  lease_.end(Event::Kind::kDrained);
}

void Server::receive() {
  // A client whose steps lie unread sends more of them at once, and has nobody to wake.
  if (const auto quiet_until = session_.segments().quiet_until(); quiet_until && Clock::now() < *quiet_until) rest_until(*quiet_until);
  auto arrival = Inbox::Arrival::kNothing;
  const auto look = [&] {
    arrival = connection_.receive();
    return arrival != Inbox::Arrival::kNothing || mailbox_.has_orders();
  };
  if (!look()) {
    session_.gang().settle();
    lease_.rest();
    if (session_.transfers().moves_bulk()) {
      bulk_spinner_.until(look);
    } else if (lease_.is_open() && Clock::now() - connection_.answered_at() < kGoesOn) {
      spinner_.until(look);
    }
  }
  if (arrival == Inbox::Arrival::kEnd) throw ClientLost();
  if (arrival == Inbox::Arrival::kNothing) wait(POLLIN);
}

bool Server::can_upload_directly() const {
  const auto size = connection_.inbox().body_size();
  if (!size || *size < kDirectUploadBytes || !lease_.is_open()) return false;
  const wire::Reader body = connection_.inbox().body_so_far();
  return body.left() >= kWriteHeaderBytesMax && *body.position() == static_cast<uint8_t>(wire::Command::kWrite);
}

void Server::upload_directly() {
  wire::Reader body = connection_.inbox().body_so_far();
  const size_t size = *connection_.inbox().body_size();
  const size_t there = body.left();
  body.u8();
  const uint64_t storage = body.varint();
  const uint64_t offset = body.varint();
  const auto bytes = static_cast<size_t>(body.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  const size_t header = there - body.left();
  std::optional<Upload> upload;
  if (header + bytes == size) {
    session_.end_segment();
    upload = session_.transfers().begin_upload(storage, offset, bytes);
  }
  if (!upload) {
    while (!connection_.inbox().is_complete()) receive();
    return;
  }
  lease_.work();
  size_t done = body.left();
  std::memcpy(upload->target(), body.position(), done);
  connection_.inbox().drop();
  while (done < bytes) {
    const size_t got = connection_.receive_into(upload->target() + done, bytes - done);
    if (got == 0) wait(POLLIN);
    done += got;
  }
  wait_for_lease();  // it may have ended meanwhile
  session_.transfers().finish_upload(*upload);
  lease_.count_command();
}

void Server::refuse(const std::string& reason, bool goes_on) {
  resumption_.end();
  const std::string sentence = told_text(reason, wire::kMessageBytesMax);
  mailbox_.report({Event::Kind::kRefused, 0, 0, 0, sentence});
  wire::Writer head;
  head.reply(wire::Reply::kRefused);
  head.string(sentence);
  if (goes_on) head.u8(1);
  try {
    connection_.send(head, nullptr, 0);
    ::shutdown(connection_.socket(), SHUT_WR);
    linger();
  } catch (const ClientLost&) {
  }
}

void Server::linger() {
  const auto until = Clock::now() + kLinger;
  std::array<uint8_t, 4096> unread;
  while (Clock::now() < until) {
    const auto got = ::recv(connection_.socket(), unread.data(), unread.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got == 0 || errno != EAGAIN) return;
    std::vector<pollfd> polled{{connection_.socket(), POLLIN, 0}};
    poll(polled, until);
  }
}

void Server::hand_over_offers() {
  if (session_.segments().has_offers()) mailbox_.offer(session_.segments().take_offers());
}

// Orders.

struct Server::Obey {
  Server& server;

  void operator()(const orders::OpenLease& order) const {
    server.session_.set_limit(order.limit_bytes);
    server.session_.restore();
    server.lease_.open(order.epoch);
  }
  void operator()(const orders::CloseLease& order) const {
    const auto idle = server.lease_.idle_for();
    if (server.lease_.is_open() && !server.session_.segments().is_deferring_steadily()) server.session_.settle();
    server.lease_.close(order.epoch, idle);
  }
  void operator()(const orders::Park& order) const {
    if (server.lease_.is_open()) throw std::logic_error("the pool parks a session that holds a lease");
    if (server.holding_) return;  // it is off the device, and may be on its way elsewhere
    const auto spilled = bytes(server.session_.park(order.space, server.spill_directory_));
    const auto& storages = server.session_.storages();
    const auto used = bytes(storages.used_bytes() - storages.absent_bytes() + storages.kept_bytes());
    server.mailbox_.report({Event::Kind::kParked, 0, used, spilled});
  }
  void operator()(const orders::Restore&) const {
    if (server.holding_) return;
    server.session_.restore();
    server.mailbox_.report({Event::Kind::kRestored});
  }
  void operator()(const orders::Copy& order) const { server.images_.copy(order); }
  void operator()(const orders::TakeLibrary& order) const {
    server.session_.segments().take_library(order.segment, order.library, order.note, order.is_shared, order.took);
  }
  void operator()(const orders::RefuseLibrary& order) const { server.session_.segments().refuse_library(order.segment, order.why); }
  void operator()(const orders::LackLibrary&) const {}  // the segment stays as it is
  void operator()(const orders::WidenSegment& order) const { server.session_.segments().widen(order.segment, order.changing); }
  void operator()(const orders::ExportLibraries& order) const { server.session_.image().set_libraries(order.libraries); }
  void operator()(const orders::TakeKernel& order) const {
    if (server.connection_.is_there()) server.session_.user_code().kernels.take(order.kernel, order.name, order.parameters);  // else nobody waits for it any more
  }
  void operator()(const orders::RefuseKernel& order) const {
    if (server.connection_.is_there()) server.session_.user_code().kernels.refuse(order.kernel, order.code, order.why);
  }
  [[noreturn]] void operator()(const orders::End&) const { throw Ended(); }
};

void Server::compile(double due_seconds) {
  session_.segments().compile(static_cast<uint64_t>(std::max(0.0, due_seconds) * 1e9), [this](uint64_t segment) {
    hand_over_offers();
    if (const auto answer = mailbox_.wait_for_answer(segment, kLibraryPatience)) std::visit(Obey{*this}, *answer);
  });
}

void Server::obey() {
  for (const auto& order : mailbox_.take_orders()) std::visit(Obey{*this}, order);
}

// Process groups.

std::string Server::door_address() {
  if (is_outside_) throw std::runtime_error("a client outside of the installation has no process groups; run the program in a notebook or as a job");
  if (encryption_.is_required) throw std::runtime_error("process groups go over the network in clear, which is refused here: the pool's setting plaintext allows it");
  const bool is_tcp = listener_.address().rfind("tcp:", 0) == 0;
  return is_tcp ? any_port_of(door_address_) : door_address_ + "." + std::to_string(++doors_);
}

// As long as nothing comes this is no work: the pool is told, and ends the lease of who waits in vain.
void Server::wait_for(std::vector<pollfd>& polled, Clock::time_point until) {
  lease_.rest();
  if (const auto again = lease_.waiting_check()) until = std::min(until, *again);
  const size_t count = polled.size();
  polled.push_back({connection_.socket(), POLLRDHUP, 0});
  poll(polled, until);
  if (polled.back().revents != 0 && polled.back().fd == connection_.socket()) connection_.lose();
  lease_.end_wait(std::any_of(polled.begin(), polled.begin() + static_cast<std::ptrdiff_t>(count), [](const pollfd& one) { return one.revents != 0; }));
}

bool Server::has_lease(bool waits) {
  if (!waits) return lease_.is_open();
  while (!lease_.is_open()) {
    lease_.starve();
    wait(0);
  }
  lease_.work();
  lease_.touch();
  return true;
}

void Server::rest_until(Clock::time_point until) {
  lease_.rest();
  std::vector<pollfd> polled{{connection_.socket(), POLLRDHUP, 0}};
  poll(polled, until);
}

void Server::wait(short events) {
  const bool calls_back = callbacks_.are_on();  // a command is being carried out, so its lease is at work
  if (!calls_back) lease_.rest();
  const auto deferred_until = session_.segments().deferred_until();
  const auto until = deferred_until || calls_back ? deferred_until : lease_.idle_check();
  const bool drains = !(events & POLLIN) && connection_.has_room();
  std::vector<pollfd> polled{{connection_.socket(), static_cast<short>(events | POLLRDHUP | (drains ? POLLIN : 0)), 0}};
  session_.gang().watch(polled);
  poll(polled, until);
  if (deferred_until && Clock::now() >= *deferred_until && lease_.is_open()) {
    lease_.work();
    lease_.touch();
    session_.release_late();
  }
  session_.gang().check(polled);
  if (polled[0].fd != connection_.socket()) return;  // the client is back over another one
  if (drains && polled[0].revents & POLLIN) return connection_.drain();
  const bool gone = polled[0].revents & (POLLERR | POLLHUP) || (polled[0].revents & POLLRDHUP && !(events & POLLIN));
  if (gone && !(polled[0].revents & POLLIN)) connection_.lose();
}

void Server::poll(std::vector<pollfd>& polled, std::optional<Clock::time_point> until) {
  const size_t own = polled.size();
  const bool obeys = !callbacks_.are_on();
  polled.push_back({obeys ? mailbox_.order_descriptor() : mailbox_.end_descriptor(), POLLIN, 0});
  resumption_.add_to(polled, until);
  const timespec left = until ? time_until(*until) : timespec{};
  ::ppoll(polled.data(), polled.size(), until ? &left : nullptr, nullptr);
  if (polled[own].revents & POLLIN && !obeys) throw Ended();
  if (polled[own].revents & POLLIN) obey();
  resumption_.hear(polled, own + 1);
  polled.resize(own);
}

}  // namespace forebay::worker
