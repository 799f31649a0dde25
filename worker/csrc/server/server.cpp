#include "server/server.h"

#include <pthread.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/headeronly/version.h>

#include "base/memory.h"
#include "device/bernoulli.h"
#include "device/division.h"

namespace forebay::worker {

namespace {

constexpr size_t kDirectUploadBytes = size_t{64} << 10;  // payloads below go through the inbox
constexpr size_t kWriteHeaderBytesMax = 1 + 3 * 10;
constexpr auto kBusyPoll = std::chrono::milliseconds(1);  // how often an accelerator is asked whether it is done
constexpr auto kGoesOn = std::chrono::milliseconds(1);  // so soon after an answer its client says what comes next
constexpr auto kLinger = std::chrono::seconds(2);
const std::string kBetweenDevices = "copying between devices";  // where an operator would be told
constexpr auto kForGood = std::chrono::hours(24 * 365);

uint64_t nanoseconds(Clock::duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
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

Server::Server(Device device, const std::string& address, std::optional<int> threads, std::string spill_directory, std::vector<RankAddress> others, Homes homes)
    : device_(std::move(device)),
      threads_(threads),
      spill_directory_(std::move(spill_directory)),
      door_address_(address),
      others_(std::move(others)),
      homes_(homes),
      listener_(address),
      session_(device_, *this, *this) {
  outlive_integer_divisions();
  draw_bernoulli_by_vectors();
}

Server::~Server() {
  end();
  if (thread_.joinable()) thread_.join();
}

// Orders.

void Server::assign(const Ticket& ticket, int64_t limit_bytes, double idle_release_seconds, std::optional<ImageSource> source) {
  idle_release_ = seconds(idle_release_seconds);
  start([this, ticket, limit_bytes, source = std::move(source)] {
    join_others();
    session_.set_limit(limit_bytes);
    if (source) fetch(*source);
    tell({Event::Kind::kAssigned});
    serve(ticket);
  });
}

void Server::carry(ImageSource source, int64_t limit_bytes, int64_t bytes_per_second) {
  start([this, limit_bytes, bytes_per_second, source = std::move(source)] {
    listener_.close();  // no client comes here
    bytes_per_second_ = bytes_per_second;
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

void Server::open(uint64_t epoch, int64_t limit_bytes) { order({Order::Kind::kOpen, epoch, limit_bytes}); }
void Server::close(uint64_t epoch) { order({Order::Kind::kClose, epoch, 0}); }
void Server::park(int64_t host_bytes, int64_t spill_bytes) { order({Order::Kind::kPark, 0, 0, {host_bytes, spill_bytes}}); }
void Server::restore() { order({Order::Kind::kRestore, 0, 0}); }
void Server::end() {
  end_bell_.ring();
  order({Order::Kind::kEnd, 0, 0});
}

void Server::order(Order order) {
  {
    const std::lock_guard guard(mutex_);
    orders_.push_back(order);
    ordered_.store(true, std::memory_order_release);
  }
  orders_bell_.ring();
}

std::vector<Event> Server::take_events() {
  events_bell_.silence();
  const std::lock_guard guard(mutex_);
  return std::exchange(events_, {});
}

Statistics Server::statistics() const {
  const int64_t epoch = epoch_.load();
  return {epoch < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(epoch)), memory_bytes_.load(), busy_ns_.load(), commands_.load()};
}

std::optional<std::pair<uint64_t, std::string>> Server::running() const { return session_.running().now(); }

bool Server::join(double patience_seconds) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) return true;
  return ended_signal_.wait_for(lock, seconds(patience_seconds), [this] { return ended_; });
}

void Server::tell(Event event) {
  {
    const std::lock_guard guard(mutex_);
    events_.push_back(std::move(event));
  }
  events_bell_.ring();
}

// The thread.

void Server::run(const std::function<void()>& work) {
  try {
    device_.enter(threads_);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::NoGradGuard no_grad;
    work();
  } catch (const Ended&) {
  } catch (const std::exception& error) {
    tell({Event::Kind::kFailed, 0, 0, 0, told_text(error.what(), wire::kMessageBytesMax)});
  }
  client_ = Descriptor();
  const std::lock_guard guard(mutex_);
  ended_ = true;
  ended_signal_.notify_all();
}

void Server::join_others() {
  if (others_.empty()) return;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const auto& other : others_) {
    ranks.push_back(std::make_unique<Rank>(static_cast<int>(ranks.size()) + 1, other, [this](int socket, short events) { return wait_for_other(socket, events); }));
  }
  for (const auto& rank : ranks) rank->connect();
  session_.join(std::move(ranks), homes_);
}

// False where this worker is to end. Orders wait, since the session is in the middle of a command.
bool Server::wait_for_other(int socket, short events) {
  const Running::Call waiting(session_.running(), kBetweenDevices);
  std::array<pollfd, 2> polled{{{socket, events, 0}, {end_bell_.get(), POLLIN, 0}}};
  ::poll(polled.data(), polled.size(), socket < 0 ? 0 : -1);
  return !(polled[1].revents & POLLIN);
}

void Server::serve(const Ticket& ticket) {
  try {
    admit(ticket);
    converse();
  } catch (const RankLost& error) {
    refuse(error.what());
    throw;
  } catch (const wire::WireError& error) {
    session_.collectives().end(std::string("its session ended: ") + error.what());
    refuse(error.what());
  } catch (const ClientLost&) {
  } catch (const Left&) {
    hold();
  }
  session_.collectives().end("its program ended");
  rest();
  client_ = Descriptor();
  tell({Event::Kind::kClientGone});
  std::vector<pollfd> nothing;
  while (true) poll(nothing, idle_check());
}

void Server::admit(const Ticket& ticket) {
  Door door(listener_, ticket, wire::Command::kHello);
  client_ = hear(door);
  listener_.close();
  tell({Event::Kind::kConnected});
  welcome();
}

// Waits for the one who shows the ticket.
Descriptor Server::hear(Door& door) {
  while (true) {
    std::vector<pollfd> polled;
    door.add_to(polled);
    auto until = idle_check();
    if (const auto deadline = door.deadline()) until = until ? std::min(*until, *deadline) : *deadline;
    poll(polled, until);
    auto peer = door.hear(Clock::now());
    for (auto& sentence : door.take_refusals()) tell({Event::Kind::kRefused, 0, 0, 0, std::move(sentence)});
    if (peer) return std::move(peer->socket);
  }
}

void Server::welcome() {
  wire::Writer head;
  head.reply(wire::Reply::kWelcome);
  head.varint(wire::kVersion);
  head.string(TORCH_VERSION);
  head.string(device_.kind());
  head.string(device_.model());
  head.varint(static_cast<uint64_t>(session_.storages().limit_bytes()));
  head.string(session_.kernels().refusal());
  send(head, nullptr, 0);
}

void Server::converse() {
  while (true) {
    while (inbox_.is_complete()) {
      wire::Reader frame = inbox_.body_so_far();
      while (!frame.done() || session_.is_following()) step(frame);
      inbox_.drop();
      account();
    }
    if (can_upload_directly()) {
      upload_directly();
    } else {
      receive();
    }
  }
}

// One command, or a wait for the lease that it needs.
void Server::step(wire::Reader& frame) {
  if (ordered_.load(std::memory_order_acquire)) obey();
  const bool device_work = session_.is_device_work(frame);
  if (device_work && !gate_.is_open()) {
    if (gate_.starve()) tell({Event::Kind::kStarved});
    return wait(0);
  }
  work();
  if (device_work) touched_ = true;
  if (!session_.is_following() && *frame.position() == static_cast<uint8_t>(wire::Command::kMark)) {
    frame.u8();
    session_.end_segment();
    mark(frame.varint());
  } else if (!session_.is_following() && *frame.position() == static_cast<uint8_t>(wire::Command::kLeave)) {
    leave(frame);
  } else {
    session_.execute(frame);
  }
  hand_over_offers();
  commands_.store(commands_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Server::mark(uint64_t epoch) {
  if (!gate_.is_open()) return gate_.mark(epoch);
  session_.settle();
  rest();
  shut(Event::Kind::kDrained);
}

void Server::receive() {
  // A client whose steps lie unread sends more of them at once, and has nobody to wake.
  if (const auto quiet_until = session_.segments().quiet_until(); quiet_until && Clock::now() < *quiet_until) rest_until(*quiet_until);
  auto arrival = Inbox::Arrival::kNothing;
  const auto look = [&] {
    arrival = inbox_.receive(client_.get());
    return arrival != Inbox::Arrival::kNothing || ordered_.load(std::memory_order_relaxed);
  };
  if (!look()) {
    session_.gang().settle();
    rest();
    if (session_.transfers().moves_bulk()) {
      bulk_spinner_.until(look);
    } else if (gate_.is_open() && Clock::now() - answered_at_ < kGoesOn) {
      spinner_.until(look);
    }
  }
  if (arrival == Inbox::Arrival::kEnd) throw ClientLost();
  if (arrival == Inbox::Arrival::kNothing) wait(POLLIN);
}

// Whether the next frame is nothing but a WRITE with a large payload that has not all come.
bool Server::can_upload_directly() const {
  const auto size = inbox_.body_size();
  if (!size || *size < kDirectUploadBytes || !gate_.is_open()) return false;
  const wire::Reader body = inbox_.body_so_far();
  return body.left() >= kWriteHeaderBytesMax && *body.position() == static_cast<uint8_t>(wire::Command::kWrite);
}

// Receives a WRITE's payload where it belongs. Where that cannot be, the frame is left to be read as any other.
void Server::upload_directly() {
  wire::Reader body = inbox_.body_so_far();
  const size_t size = *inbox_.body_size();
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
    while (!inbox_.is_complete()) receive();
    return;
  }
  work();
  size_t done = body.left();
  std::memcpy(upload->target(), body.position(), done);
  inbox_.drop();
  while (done < bytes) {
    const auto got = ::recv(client_.get(), upload->target() + done, bytes - done, MSG_DONTWAIT);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      wait(POLLIN);
    } else {
      throw ClientLost();
    }
  }
  wait_for_lease();  // it may have ended meanwhile
  session_.transfers().finish_upload(*upload);
  commands_.store(commands_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Server::refuse(const std::string& reason) {
  const std::string sentence = told_text(reason, wire::kMessageBytesMax);
  tell({Event::Kind::kRefused, 0, 0, 0, sentence});
  wire::Writer head;
  head.reply(wire::Reply::kRefused);
  head.string(sentence);
  try {
    send(head, nullptr, 0);
    ::shutdown(client_.get(), SHUT_WR);
    linger();
  } catch (const ClientLost&) {
  }
}

// Closing a socket while something unread lies in it could take back what was sent last.
void Server::linger() {
  const auto until = Clock::now() + kLinger;
  std::array<uint8_t, 4096> unread;
  while (Clock::now() < until) {
    const auto got = ::recv(client_.get(), unread.data(), unread.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got == 0 || errno != EAGAIN) return;
    std::vector<pollfd> polled{{client_.get(), POLLIN, 0}};
    poll(polled, until);
  }
}

// Tier 2.

void Server::compile(double due_seconds) {
  session_.segments().compile(static_cast<uint64_t>(std::max(0.0, due_seconds) * 1e9));
}

std::vector<Offer> Server::take_offers() {
  const std::lock_guard guard(mutex_);
  return std::exchange(offers_, {});
}

void Server::give_library(uint64_t number, const std::string& path, const std::string& note, bool is_shared, std::optional<double> took) {
  Order given{Order::Kind::kLibrary, number};
  given.library = std::make_shared<Library>(path);
  given.why = note;
  given.is_shared = is_shared;
  given.took = took;
  order(std::move(given));
}

void Server::refuse_library(uint64_t number, const std::string& why) {
  Order refused{Order::Kind::kLibrary, number};
  refused.why = why;
  order(std::move(refused));
}

void Server::widen_segment(uint64_t number, const WordPlaces& changing) {
  Order widened{Order::Kind::kWiden, number};
  widened.changing = changing;
  order(std::move(widened));
}

// Kernels of programs.

void Server::take_kernels(KernelHost host) { session_.kernels().accept_by(std::move(host)); }

void Server::give_kernel(uint64_t number, const std::string& name, const std::string& parameters) {
  order({Order::Kind::kKernel, number, 0, {}, {}, name, kernel_parameters(parameters)});
}

void Server::refuse_kernel(uint64_t number, wire::FailureCode code, const std::string& why) {
  order({Order::Kind::kNoKernel, number, static_cast<int64_t>(code), {}, {}, why});
}

void Server::take_along(std::string libraries) {
  Order along{Order::Kind::kAlong};
  along.why = std::move(libraries);
  order(std::move(along));
}

void Server::hand_over_offers() {
  if (!session_.segments().has_offers()) return;
  auto offers = session_.segments().take_offers();
  {
    const std::lock_guard guard(mutex_);
    for (auto& offer : offers) offers_.push_back(std::move(offer));
  }
  events_bell_.ring();
}

// The lease.

void Server::obey() {
  std::vector<Order> orders;
  {
    const std::lock_guard guard(mutex_);
    orders.swap(orders_);
    ordered_.store(false, std::memory_order_release);
  }
  for (const auto& order : orders) obey(order);
}

void Server::obey(const Order& order) {
  switch (order.kind) {
    case Order::Kind::kOpen:
      session_.set_limit(order.limit_bytes);
      session_.restore();
      gate_.open(order.epoch);
      epoch_.store(static_cast<int64_t>(order.epoch));
      active_at_ = Clock::now();
      touched_ = false;
      if (gate_.is_marked()) shut(Event::Kind::kDrained);
      return;
    case Order::Kind::kClose: {
      const auto idle = gate_.is_open() ? idle_for() : Clock::duration{};
      if (gate_.is_open()) session_.settle();
      gate_.shut();
      epoch_.store(-1);
      return tell({Event::Kind::kClosed, order.epoch, nanoseconds(idle)});
    }
    case Order::Kind::kPark:
      if (gate_.is_open()) throw std::logic_error("the pool parks a session that holds a lease");
      if (holding_) return;  // it is off the device, and may be on its way elsewhere
      return tell({Event::Kind::kParked, 0, bytes(session_.storages().used_bytes()), bytes(session_.park(order.space, spill_directory_))});
    case Order::Kind::kRestore:
      if (holding_) return;
      session_.restore();
      return tell({Event::Kind::kRestored});
    case Order::Kind::kLibrary:
      if (!order.library) return session_.segments().refuse_library(order.epoch, order.why);
      return session_.segments().take_library(order.epoch, order.library, order.why, order.is_shared, order.took);
    case Order::Kind::kWiden:
      return session_.segments().widen(order.epoch, order.changing);
    case Order::Kind::kAlong:
      return session_.image().set_libraries(order.why);
    case Order::Kind::kKernel:
      if (client_.get() < 0) return;  // nobody waits for it any more
      return session_.kernels().take(order.epoch, order.why, order.parameters);
    case Order::Kind::kNoKernel:
      if (client_.get() < 0) return;
      return session_.kernels().refuse(order.epoch, static_cast<wire::FailureCode>(order.limit_bytes), order.why);
    case Order::Kind::kEnd:
      throw Ended();
  }
}

// Does nothing where no lease is open.
void Server::shut(Event::Kind kind, uint64_t number) {
  const auto epoch = gate_.shut();
  epoch_.store(-1);
  if (epoch) tell({kind, *epoch, number});
}

// Process groups.

std::string Server::door_address() {
  const bool is_tcp = listener_.address().rfind("tcp:", 0) == 0;
  return is_tcp ? any_port_of(door_address_) : door_address_ + "." + std::to_string(++doors_);
}

// As long as nothing comes this is no work: the pool is told, and ends the lease of who waits in vain.
void Server::wait_for(std::vector<pollfd>& polled, Clock::time_point until) {
  rest();
  if (const auto again = waiting_check()) until = std::min(until, *again);
  const size_t count = polled.size();
  polled.push_back({client_.get(), POLLRDHUP, 0});
  poll(polled, until);
  if (polled.back().revents != 0) throw ClientLost();
  work();
  touched_ = std::any_of(polled.begin(), polled.begin() + static_cast<std::ptrdiff_t>(count), [](const pollfd& one) { return one.revents != 0; });
  if (touched_ && gate_.is_open() && waiting_told_at_ > active_at_) tell({Event::Kind::kWorking, *gate_.epoch()});
}

void Server::wait_for_lease() {
  while (!gate_.is_open()) {
    if (gate_.starve()) tell({Event::Kind::kStarved});
    wait(0);
  }
  work();
  touched_ = true;
}

// Device work begins or goes on.
void Server::work() {
  if (working_) return;
  working_ = true;
  working_since_ = Clock::now();
}

// Brings what `statistics` says up to date.
void Server::account() {
  memory_bytes_.store(session_.storages().used_bytes(), std::memory_order_relaxed);
  if (!working_) return;
  const auto now = Clock::now();
  busy_ns_.fetch_add(nanoseconds(now - working_since_), std::memory_order_relaxed);
  working_since_ = now;
}

uint64_t Server::busy_ns() {
  account();
  return busy_ns_.load(std::memory_order_relaxed);
}

// Nothing is left to carry out for now.
void Server::rest() {
  account();
  working_ = false;
  if (!std::exchange(touched_, false)) return;
  active_at_ = Clock::now();
  device_.touched();
}

// A device that has failed is not; what the session does on it next tells of the failure.
bool Server::is_busy() {
  try {
    return device_.busy();
  } catch (const c10::Error&) {
    return false;
  }
}

// Says `Idle` when it is time; returns when to ask again.
std::optional<Clock::time_point> Server::idle_check() {
  if (!gate_.is_open()) return std::nullopt;
  const auto now = Clock::now();
  if (is_busy()) {
    active_at_ = now;
    return now + kBusyPoll;
  }
  if (now - active_at_ < idle_release_) return active_at_ + idle_release_;
  shut(Event::Kind::kIdle, nanoseconds(now - active_at_));
  return std::nullopt;
}

// How long nothing has been carried out.
Clock::duration Server::idle_for() const { return touched_ ? Clock::duration{} : Clock::now() - active_at_; }

// In a collective: says `Waiting` each time so long has passed; returns when to ask again.
std::optional<Clock::time_point> Server::waiting_check() {
  if (!gate_.is_open()) return std::nullopt;
  const auto now = Clock::now(), since = std::max(active_at_, waiting_told_at_);
  if (now - since < idle_release_) return since + idle_release_;
  waiting_told_at_ = now;
  tell({Event::Kind::kWaiting, *gate_.epoch(), nanoseconds(now - active_at_)});
  return now + idle_release_;
}

// Waits not for what the client sends, but for its end, and for orders.
void Server::rest_until(Clock::time_point until) {
  rest();
  std::vector<pollfd> polled{{client_.get(), POLLRDHUP, 0}};
  poll(polled, until);
}

void Server::wait(short events) {
  rest();
  const auto held_until = session_.segments().deferred_until();
  const auto until = held_until ? held_until : idle_check();
  std::vector<pollfd> polled{{client_.get(), static_cast<short>(events | POLLRDHUP), 0}};
  session_.gang().watch(polled);
  poll(polled, until);
  if (held_until && Clock::now() >= *held_until && gate_.is_open()) {
    work();
    touched_ = true;
    session_.release_late();
  }
  session_.gang().check(polled);
  const bool gone = polled[0].revents & (POLLERR | POLLHUP) || (polled[0].revents & POLLRDHUP && !(events & POLLIN));
  if (gone && !(polled[0].revents & POLLIN)) throw ClientLost();
}

void Server::poll(std::vector<pollfd>& polled, std::optional<Clock::time_point> until) {
  polled.push_back({orders_bell_.get(), POLLIN, 0});
  const timespec left = until ? time_until(*until) : timespec{};
  ::ppoll(polled.data(), polled.size(), until ? &left : nullptr, nullptr);
  const bool rung = polled.back().revents & POLLIN;
  polled.pop_back();
  if (!rung) return;
  orders_bell_.silence();
  obey();
}

namespace {

// Lets a message carry a descriptor. The bytes must live until it is sent.
void attach(msghdr& message, int descriptor, std::array<char, CMSG_SPACE(sizeof(int))>& bytes) {
  message.msg_control = bytes.data();
  message.msg_controllen = bytes.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(descriptor));
}

}  // namespace

void Server::send(const wire::Writer& head, const void* payload, size_t payload_bytes) { send(head, payload, payload_bytes, -1); }

void Server::share(const wire::Writer& head, int descriptor) { send(head, nullptr, 0, descriptor); }

void Server::send(const wire::Writer& head, const void* payload, size_t payload_bytes, int descriptor) {
  std::array<uint8_t, wire::kFrameHeaderBytes> header;
  wire::put_frame_header(header.data(), head.size() + payload_bytes);
  std::array<iovec, 3> parts{{{header.data(), header.size()},
                              {const_cast<uint8_t*>(head.bytes().data()), head.size()},
                              {const_cast<void*>(payload), payload_bytes}}};
  size_t first = 0;
  while (true) {
    while (first < parts.size() && parts[first].iov_len == 0) ++first;
    if (first == parts.size()) {
      answered_at_ = Clock::now();
      return;
    }
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = parts.size() - first;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (descriptor >= 0) attach(message, descriptor, control);
    auto sent = ::sendmsg(client_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) throw ClientLost();
      wait(POLLOUT);
      continue;
    }
    descriptor = -1;  // it goes with the first byte
    for (size_t part = first; sent > 0; ++part) {
      const size_t taken = std::min(static_cast<size_t>(sent), parts[part].iov_len);
      parts[part].iov_base = static_cast<uint8_t*>(parts[part].iov_base) + taken;
      parts[part].iov_len -= taken;
      sent -= static_cast<ssize_t>(taken);
    }
  }
}

}  // namespace forebay::worker
