#include "stream.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "known_calls.h"
#include "locations.h"
#include "profile.h"
#include "python.h"
#include "recorder.h"

namespace forebay {
namespace {

using namespace std::chrono_literals;
using wire::Command;
using wire::Reply;

constexpr size_t kFrameBytesTarget = 64 << 10;  // a frame is closed after the command that passes this
constexpr size_t kSendBytesDue = 8 << 10;       // the recording thread itself sends when this much is pending
constexpr size_t kBehindUploadBytesDue = 4 << 20;  // as much behind an upload that nobody waits for
constexpr size_t kOftenCommands = 512;  // fewer between two questions: the worker waits for them
constexpr size_t kEarlyCommands = 4;  // so many are sent to it then, unless it has others to read yet
constexpr size_t kReceiveBytes = 64 << 10;
constexpr auto kTick = 50us;
constexpr auto kReadingTick = 1000us;  // while the program reads from tick to tick
constexpr auto kBusyTick = 250us;  // while the worker has not read what it was sent: it has enough to do
constexpr int kIdleTicks = 40;  // after these the ticker sleeps until something is recorded
constexpr uint64_t kListenTicks = 8;  // with something to send, before it looks whether the worker has stopped
constexpr auto kRest = 100ms;  // longer than most programs wait for a step's results
constexpr int kConnectMs = 10'000;

int connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TORCH_CHECK(path.size() < sizeof(address.sun_path), "the worker's socket path is longer than ", sizeof(address.sun_path), " bytes: ", path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TORCH_CHECK(fd >= 0, "cannot create a socket: ", std::strerror(errno));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    ::close(fd);
    TORCH_CHECK(false, "the worker at unix:", path, " cannot be reached: ", std::strerror(error));
  }
  return fd;
}

int connect_tcp(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  TORCH_CHECK(status == 0, "the worker's host ", host, " cannot be found: ", ::gai_strerror(status));
  int fd = -1, error = 0;
  for (const addrinfo* entry = found; entry != nullptr && fd < 0; entry = entry->ai_next) {
    fd = ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol);
    if (fd < 0) continue;
    const timeval limit{kConnectMs / 1000, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(fd, entry->ai_addr, entry->ai_addrlen) != 0) {
      error = errno;
      ::close(fd);
      fd = -1;
    }
  }
  ::freeaddrinfo(found);
  TORCH_CHECK(fd >= 0, "the worker at tcp:", host, ":", port, " cannot be reached: ", std::strerror(error));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

int connect_address(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return connect_unix(address.substr(5));
  const size_t colon = address.rfind(':');
  TORCH_CHECK(address.rfind("tcp:", 0) == 0 && colon > 4, "a worker's address is unix:PATH or tcp:HOST:PORT, not ", address);
  return connect_tcp(address.substr(4, colon - 4), address.substr(colon + 1));
}

}  // namespace

// One for each device there may be; they outlive static destruction, since tensors may be freed that late.
struct Streams {
  std::array<CommandStream, kDevicesMax> list;

  static Streams& get() {
    static auto* streams = new Streams;
    return *streams;
  }

 private:
  Streams() {
    for (size_t device = 0; device < list.size(); ++device) list[device].device_ = static_cast<c10::DeviceIndex>(device);
    // A fork copies what is recorded as it is: hold its locks across it, so that it is whole in the child.
    ::pthread_atfork([] { for (auto& stream : get().list) stream.mutex_.lock(); }, [] { for (auto& stream : get().list) stream.mutex_.unlock(); },
                     [] {
                       for (auto& stream : get().list) {
                         stream.mutex_.unlock();
                         stream.forked();
                       }
                       forked_publication();
                     });
  }
};

CommandStream& CommandStream::of(c10::DeviceIndex device) { return Streams::get().list[static_cast<size_t>(device)]; }

// In the child, which has this thread alone: whoever held a lock is not here. A parent without a session leaves it free to have its own.
void CommandStream::forked() {
  new (&lease_mutex_) std::mutex;
  new (&send_mutex_) std::mutex;
  new (&receive_mutex_) std::timed_mutex;
  new (&ticker_mutex_) std::mutex;
  new (&notice_mutex_) std::mutex;
  new (&ticker_wake_) std::condition_variable;
  new (&uploads_) std::deque<Upload>;
  new (&downloads_) std::deque<Download>;
  contents_.forked();
  shared_.unmap();
  uploading_ = downloading_ = false;
  const int fd = socket_.exchange(-1);
  if (fd >= 0) ::close(fd);
  ticker_runs_ = false;
  lease_open_ = false;
  away_ = false;
  KnownCalls::get().forked();
  if (connected_.exchange(false)) forked_ = true;
}

// Session

Welcome CommandStream::connect(const std::string& address, const std::string& ticket) {
  TORCH_CHECK(ticket.size() == wire::kTicketBytes, "a ticket has ", wire::kTicketBytes, " bytes, not ", ticket.size());
  TORCH_CHECK(!connected_ || away_, "the virtual device is connected already");
  const WithoutGil free;
  const std::scoped_lock lock(receive_mutex_, send_mutex_);
  const int old = socket_.exchange(-1);
  if (old >= 0) ::close(old);
  socket_ = connect_address(address);
  outgoing_.clear();
  sent_ = 0;
  filled_ = 0;
  if (!away_) forget_transfers();
  heard_generation_ = generation();
  greet(ticket);
  const Welcome welcome = be_welcomed();
  worker_is_cpu_ = welcome.kind == "cpu";
  worker_is_gpu_ = welcome.kind == "cuda" || welcome.kind == "hip" || welcome.kind == "null";
  kind_of_worker_ = std::hash<std::string>()(welcome.torch + " " + welcome.kind + " " + welcome.model);
  if (address.rfind("unix:", 0) == 0) share_memory();
  note_session(device_);
  connected_ = true;
  {
    const std::lock_guard recording(mutex_);
    no_kernels_ = welcome.no_kernels;
    away_ = false;
  }
  start_ticker();
  wake_ticker();
  return welcome;
}

void CommandStream::greet(const std::string& ticket) {
  wire::Writer hello;
  hello.raw("\0\0\0\0", wire::kFrameHeaderBytes);
  hello.command(Command::kHello);
  hello.raw(&wire::kMagic, sizeof(wire::kMagic));
  hello.varint(wire::kVersion);
  hello.raw(ticket.data(), ticket.size());
  hello.string(TORCH_VERSION);
  wire::put_frame_header(hello.bytes().data(), hello.size() - wire::kFrameHeaderBytes);
  outgoing_ = hello.bytes();
  drain_outgoing(Wait::kYes);
}

Welcome CommandStream::be_welcomed() {
  receive_frame();
  wire::Reader body(incoming_.data() + wire::kFrameHeaderBytes, filled_ - wire::kFrameHeaderBytes);
  filled_ = 0;
  const auto reply = static_cast<Reply>(body.u8());
  if (reply != Reply::kWelcome) {
    const std::string message = reply == Reply::kRefused ? body.string(wire::kMessageBytesMax) : "it does not speak this protocol";
    ::close(socket_.exchange(-1));
    TORCH_CHECK(false, "the worker refused the virtual device: ", message);
  }
  body.varint();
  return {body.string(), body.string(), body.string(), body.varint(), body.done() ? "the worker's release takes none" : body.string()};
}

// The session's tensors are gone; what is recorded from now on belongs to the next one.
void CommandStream::abandon(const std::string& message) {
  lease_open_ = false;
  tell_lease(device_, false);
  contents_.clear();
  const std::lock_guard lock(mutex_);
  away_ = false;
  memory_limit_ = wire::kStorageBytesMax;
  lost_message_ = message;
  generation_.fetch_add(1);
  pending_.clear();
  frame_start_ = 0;
  frame_open_ = false;
  calls_ = 0;
  unsynchronised_ = false;
  tracer_.reset();
  Recorder::of(device_).forget();
  forget_failures();
}

void CommandStream::lose(const std::string& message) {
  const WithoutGil free;
  if (!connected_.exchange(false)) return;
  abandon(message);
  const int fd = socket_.load();
  if (fd >= 0) ::shutdown(fd, SHUT_RDWR);  // wakes whoever waits for it; connect() closes it
}

void CommandStream::refuse_generation() {
  TORCH_CHECK(!forked_, "a tensor of the virtual device cannot be used in a forked process; start processes with the 'spawn' method");
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(false, "this tensor is lost: ", lost_message_);
}

void CommandStream::fail_connection(const std::string& what) {
  const std::string message = "the connection to the worker broke (" + what + "); the tensors on this device are lost, and new ones get a new session";
  if (connected_.exchange(false)) {
    abandon(message);
  } else if (heard_generation_ != generation()) {
    refuse_generation();  // it was lost before, and why is known
  }
  TORCH_CHECK(false, message);
}

// Lease

void CommandStream::set_lease_callback(std::function<void()> callback) { lease_callback_ = std::move(callback); }

void CommandStream::wait_for_lease() {
  TORCH_CHECK(!forked_, "the virtual device cannot be used in a forked process; start processes with the 'spawn' method");
  TORCH_CHECK(lease_callback_, "the virtual device has no service to draw from; set FOREBAY_URL, or use `forebay run`");
  thread_local bool waiting = false;
  TORCH_CHECK(!waiting, "a signal handler cannot use the virtual device while the program it interrupts waits for it; set a flag there, and act on it afterwards");
  refuse_in_signal_handler();
  const ActivityClock profiled(Activity::kLease, device_);
  const WithoutGil free;
  const std::lock_guard lock(lease_mutex_);
  if (lease_open_.load(std::memory_order_acquire)) return;
  waiting = true;
  const auto done = c10::make_scope_exit([] { waiting = false; });
  call_python(lease_callback_);
}

bool CommandStream::mark() {
  const WithoutGil free;
  if (!lease_open_.exchange(false)) return false;
  {
    const std::lock_guard lock(mutex_);
    tracer_.say_frees();
    cut();
    pending_.command(Command::kMark);
    pending_.varint(epoch_.load(std::memory_order_relaxed));
    appended();
  }
  flush(Wait::kYes);
  return true;
}

// Recording

wire::Writer& CommandStream::frame() {
  if (!frame_open_) {
    frame_start_ = pending_.size();
    pending_.raw("\0\0\0\0", wire::kFrameHeaderBytes);
    frame_open_ = true;
  }
  return pending_;
}

void CommandStream::open_frame() {
  tracer_.settle();
  frame();
}

void CommandStream::cut() {
  tracer_.cut();
  frame();
}

void CommandStream::close_frame() {
  if (!frame_open_) return;
  wire::put_frame_header(pending_.bytes().data() + frame_start_, pending_.size() - frame_start_ - wire::kFrameHeaderBytes);
  frame_open_ = false;
  ++frames_;
}

void CommandStream::appended() {
  appended_to_send();
  wake_ticker();
}

// As appended, where the caller sends.
void CommandStream::appended_to_send() {
  if (asks_often_) {
    asks_often_ = since_question_ < kOftenCommands;
    if (++since_sent_ % kEarlyCommands == 0) due_.store(Due::kEarly, std::memory_order_relaxed);
  }
  ++since_question_;
  if (pending_.size() - frame_start_ > kFrameBytesTarget) close_frame();
  if (pending_.size() > (uploading_.load(std::memory_order_relaxed) ? kBehindUploadBytesDue : kSendBytesDue)) due_.store(Due::kYes, std::memory_order_relaxed);
}

void CommandStream::wake_ticker() {
  if (!ticker_asleep_.load(std::memory_order_relaxed)) [[likely]] return;
  ticker_asleep_ = false;
  ticker_wake_.notify_one();
}

// Under the lock, with the append of a command that somebody will wait for.
void CommandStream::put_question() {
  asks_often_ = since_question_ < kOftenCommands;
  since_question_ = 0;
}

void CommandStream::send_due() {
  if (!connected_.load(std::memory_order_relaxed)) return;
  const ActivityClock profiled(Activity::kSend, device_);
  due_.load(std::memory_order_relaxed) == Due::kYes ? flush(Wait::kYes) : send_early();
}

// Without a wait, so without giving the GIL up.
void CommandStream::send_early() {
  if (in_signal_handler()) return;
  if (peer_is_busy()) return due_.store(Due::kNo, std::memory_order_relaxed);
  const std::unique_lock send_lock(send_mutex_, std::try_to_lock);
  if (!send_lock || !connected_ || away_ || !uploads_.empty()) return;
  take_pending(outgoing_);
  drain_outgoing(Wait::kNo);
}

void CommandStream::allocate(uint64_t id, int64_t bytes) {
  static const std::vector<wire::Word> kinds{wire::Word::kNew};
  const std::lock_guard lock(mutex_);
  const uint64_t key = wire::allocation_key(static_cast<uint64_t>(bytes));
  if (lease_open_.load(std::memory_order_relaxed)) {
    tracer_.step(key, {id}, kinds);
  } else {
    tracer_.step_in_full(key, {id}, kinds);  // a worker has what is expected wait for a lease
  }
  if (bytes > 0) unsynchronised_.store(true, std::memory_order_relaxed);  // it may be too much
  appended();
}

void CommandStream::resize(const StorageHandle& handle, int64_t bytes) {
  const auto lock = lock_for(handle.generation);
  tracer_.say_frees();
  cut();
  pending_.command(Command::kResize);
  pending_.varint(handle.id);
  pending_.varint(static_cast<uint64_t>(bytes));
  appended();
}

// An empty storage that grows is a new one, under a new number: that is a step like others, where a RESIZE would end the segment.
void CommandStream::renew(StorageHandle& handle, int64_t bytes) {
  { const auto lock = lock_for(handle.generation); }  // throws where it is lost
  free(handle);
  handle.id = new_storage();
  allocate(handle.id, bytes);
}

// Runs wherever Python drops a tensor, often with the GIL: it must not wait, so it never sends.
void CommandStream::free(const StorageHandle& handle) {
  if (forked_ || handle.generation != generation()) return;
  const std::lock_guard lock(mutex_);
  tracer_.free(handle.id);
  appended();
}

CommandStream::Question::Question(CommandStream& stream, std::optional<uint64_t> own) : clock_(stream.waited_ns_), stream_(stream) {
  stream.need_lease();
  stream.check_stopped(own);
  refuse_in_signal_handler();
  lock_ = stream.lock_to_receive();
  stream.syncs_.fetch_add(1, std::memory_order_relaxed);
}

CommandStream::Question::~Question() {
  if (!settled_) stream_.unsynchronised_ = true;
  if (std::uncaught_exceptions() > 0) stream_.wake_ticker();  // an interrupt may have left something to be sent
  stream_.synchronising_ = false;
  stream_.answers_.fetch_add(1, std::memory_order_relaxed);
  stream_.shared_in_use_.store(false, std::memory_order_relaxed);
}

void CommandStream::Question::settles() {
  stream_.put_question();
  settled_ = false;
  stream_.synchronising_ = true;
  stream_.unsynchronised_ = false;
}

void CommandStream::await(std::optional<uint64_t> own) {
  const bool settled = !unsynchronised_.load() && !synchronising_.load();
  check_stopped(own);  // after that: who hears of a failure tells the others before all counts as settled
  if (settled) return;
  const ActivityClock profiled(Activity::kSynchronize, device_);
  Question question(*this, own);
  const uint64_t request = new_request();
  {
    const auto lock = lock_to_append();
    cut();
    pending_.command(Command::kSync);
    pending_.varint(request);
    appended_to_send();
    question.settles();
  }
  flush(Wait::kYes);
  receive(request, [&](Reply reply, wire::Reader& body) {
    question.settled();
    check_failure(reply, body, own);
    note_busy(device_, body.varint());
  });
  tell_late_failure();
}

void CommandStream::ask(uint64_t generation, const std::function<uint64_t(uint64_t)>& append, const std::function<void(wire::Reader&)>& take) {
  const ActivityClock profiled(Activity::kAsk, device_);
  const Question question(*this);
  const uint64_t request = new_request();
  uint64_t sequence = 0;
  {
    const auto lock = lock_for(generation);
    tracer_.say_frees();
    sequence = append(request);
    appended_to_send();
    put_question();
  }
  note_location(device_, sequence);
  flush(Wait::kYes);
  receive(request, [&](Reply reply, wire::Reader& body) {
    check_failure(reply, body, sequence);
    take(body);
  });
}

void CommandStream::ask_aside(Command command, const std::function<void(wire::Reader&)>& take, const std::function<void(wire::Writer&)>& append) {
  const WithoutGil free;
  const WaitClock clock(waited_ns_);
  const auto receive_lock = lock_to_receive();
  const uint64_t request = new_request();
  {
    const std::lock_guard lock(mutex_);
    open_frame();
    pending_.command(command);
    pending_.varint(request);
    if (append) append(pending_);
    appended();
  }
  flush(Wait::kYes);
  receive(request, [&](Reply reply, wire::Reader& body) {
    check_failure(reply, body);
    take(body);
  });
}

std::vector<wire::Segment> CommandStream::segments() {
  std::vector<wire::Segment> told;
  if (connected()) ask_aside(Command::kTellSegments, [&](wire::Reader& body) { told = wire::get_segments(body); });
  return told;
}

wire::GangWork CommandStream::gang_work() {
  wire::GangWork told;
  if (connected()) ask_aside(Command::kTellGang, [&](wire::Reader& body) { told = wire::get_gang_work(body); });
  return told;
}

// Sending

void CommandStream::flush(Wait wait) {
  if (in_signal_handler()) return;  // the thread that is interrupted goes on sending
  const WithoutGil free;
  const std::lock_guard send_lock(send_mutex_);
  if (!connected_ || !drain_uploads(wait)) return;
  if (!away_) take_pending(outgoing_);
  drain_outgoing(wait);
}

void CommandStream::take_pending(std::vector<uint8_t>& target, bool cuts) {
  const std::lock_guard lock(mutex_);
  cuts ? tracer_.cut() : tracer_.settle();
  close_frame();
  due_.store(Due::kNo, std::memory_order_relaxed);
  if (target.empty()) {
    std::swap(target, pending_.bytes());
  } else {
    target.insert(target.end(), pending_.bytes().begin(), pending_.bytes().end());
  }
  pending_.clear();
  frame_start_ = 0;
  since_sent_ = 0;
}

// An interrupt (Ctrl-C) may leave a part unsent: it is kept, and goes first the next time. Whether all is sent.
bool CommandStream::drain_outgoing(Wait wait) {
  while (sent_ < outgoing_.size()) {
    const ssize_t count = ::send(socket_, outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      sent_ += static_cast<size_t>(count);
      bytes_sent_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      unsent_.store(true, std::memory_order_relaxed);
      if (wait == Wait::kNo) return false;
      wait_ready(POLLOUT);
    } else if (errno != EINTR) {
      fail_connection(std::strerror(errno));
    }
  }
  outgoing_.clear();
  sent_ = 0;
  unsent_.store(!uploads_.empty(), std::memory_order_relaxed);
  return true;
}

void CommandStream::wait_ready(short events) {
  pollfd entry{socket_, events, 0};
  const int ready = ::poll(&entry, 1, kPollMs);
  if (ready < 0 && errno != EINTR) fail_connection(std::strerror(errno));
  if (ready <= 0) {
    check_signals();
    if (!connected_ && socket_ < 0) fail_connection("it was closed");
  }
}

// Receiving

void CommandStream::fill(size_t bytes) {
  if (incoming_.size() < bytes) incoming_.resize(bytes);
  while (filled_ < bytes) {
    filled_ += receive_some(incoming_.data() + filled_, bytes - filled_);
  }
}

// What is there, with a descriptor that came along; as recvmsg returns.
ssize_t CommandStream::receive_at_once(uint8_t* target, size_t bytes) {
  iovec part{target, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = ::recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count <= 0) return count;
  const cmsghdr* attached = CMSG_FIRSTHDR(&message);
  if (attached != nullptr && attached->cmsg_level == SOL_SOCKET && attached->cmsg_type == SCM_RIGHTS) {
    if (descriptor_ >= 0) ::close(descriptor_);
    std::memcpy(&descriptor_, CMSG_DATA(attached), sizeof(descriptor_));
  }
  bytes_received_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
  return count;
}

// Waits for it where there is nothing; 0 after a signal.
size_t CommandStream::receive_some(uint8_t* target, size_t bytes) {
  ssize_t count = 0;
  const auto look = [&] {
    count = receive_at_once(target, bytes);
    return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  };
  (shared_in_use_.load(std::memory_order_relaxed) ? bulk_spinner_ : spinner_).until(look);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) fail_connection("the worker ended");
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    wait_ready(POLLIN);
  } else if (errno != EINTR) {
    fail_connection(std::strerror(errno));
  }
  return 0;
}

// Reads one whole frame into incoming_; an interrupt leaves what came so far for the next call.
void CommandStream::receive_frame() {
  fill(wire::kFrameHeaderBytes);
  fill(wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data()));
}

void CommandStream::receive(uint64_t request, const std::function<void(Reply, wire::Reader&)>& take) {
  TORCH_CHECK(connected_, "the virtual device is not connected to a worker");
  while (!receive_one(request, take)) {
  }
}

bool CommandStream::receive_one(uint64_t request, const std::function<void(Reply, wire::Reader&)>& take) {
  receive_frame();
  wire::Reader body(incoming_.data() + wire::kFrameHeaderBytes, filled_ - wire::kFrameHeaderBytes);
  filled_ = 0;
  const auto reply = static_cast<Reply>(body.u8());
  if (reply == Reply::kRefused) fail_connection("the worker refused: " + body.string(wire::kMessageBytesMax));
  const uint64_t answered = body.varint();
  if (answered > request) fail_connection("an answer to a question not asked");
  if (answered < request) {
    answered == 0 ? take_notice(reply, body) : take_download(answered, reply, body);
    return false;
  }
  take(reply, body);
  return true;
}

// The ticker sends what is pending, soon after it was recorded.

void CommandStream::start_ticker() {
  if (!ticker_runs_.exchange(true)) std::thread([this] { run_ticker(); }).detach();
}

bool CommandStream::has_pending() {
  const std::lock_guard lock(mutex_);
  return (!away_ && (pending_.size() > 0 || tracer_.has_unsaid())) || unsent_.load(std::memory_order_relaxed);
}

// Frees wait for the next call, of which they are expected; only where a program rests they are said.
void CommandStream::say_frees() {
  const std::lock_guard lock(mutex_);
  tracer_.say_frees();
}

// False where nothing was recorded for so long.
bool CommandStream::sleep_until_woken() {
  std::unique_lock lock(ticker_mutex_);
  const bool woken = ticker_wake_.wait_for(lock, kRest, [this] { return !ticker_asleep_.load(); });
  ticker_asleep_ = false;
  return woken;
}

// Each wake-up takes the processor from somebody, on a small host from the worker itself.
bool CommandStream::peer_is_busy() const {
  int unread = 0;
  return connected_ && ::ioctl(socket_, SIOCOUTQ, &unread) == 0 && unread > 0;
}

void CommandStream::run_ticker() {
  ::pthread_setname_np(::pthread_self(), "forebay-send");
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  int idle = 0;
  uint64_t ticks = 0;
  auto tick = kTick;
  for (uint64_t asked = 0;;) {
    std::this_thread::sleep_for(std::max(tick, peer_is_busy() ? kBusyTick : kTick));
    // Whoever reads sends what was recorded before it.
    const uint64_t before = std::exchange(asked, syncs_.load(std::memory_order_relaxed));
    tick = asked == before ? kTick : std::min(tick * 2, kReadingTick);
    if (connected_ && has_pending()) {
      idle = 0;
      try {
        flush(Wait::kNo);
        if (++ticks % kListenTicks == 0) listen();
      } catch (const std::exception&) {
        continue;  // the next call that reads or records says so
      }
    } else if (++idle > kIdleTicks || is_asking()) {
      idle = 0;
      ticker_asleep_ = true;
      if (has_pending()) {  // recorded just before it could know that somebody sleeps
        ticker_asleep_ = false;
        continue;
      }
      if (!sleep_until_woken() && connected_) say_frees();
    }
  }
}

StreamStatistics CommandStream::statistics() const {
  return {calls_, tracer_.expected_steps(), frames_.load(), bytes_sent_.load(), bytes_received_.load(), syncs_.load(), waited_ns_.load(), bytes_known_.load()};
}

}  // namespace forebay
