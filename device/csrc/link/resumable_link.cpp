#include "link/resumable_link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/waiting.h"

namespace forebay {
namespace {

using namespace std::chrono_literals;

constexpr auto kConnectPatience = 5s;
constexpr auto kRetry = 100ms;       // between attempts
constexpr auto kTellAfter = 2s;      // a worker that is not reached for so long is told of
constexpr int kMendingPollMs = 5;    // between looks whether the connection is there again
constexpr int kPatienceParts = 24;   // of the worker's grace: so long nothing may come that is waited for, before the connection is made anew
constexpr int kDoublingsMax = 4;     // of that time, where nothing was wrong
constexpr int kUserTimeoutParts = 6; // of the worker's grace: so long may its host acknowledge nothing

struct Over {};  // an attempt is not wanted any more

bool is_full() { return errno == EAGAIN || errno == EWOULDBLOCK; }

void end_when_silent(int fd, std::chrono::milliseconds grace) {
  if (grace.count() == 0) return;
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(grace.count()) / kUserTimeoutParts);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
}

std::vector<uint8_t> resume_frame(const std::string& ticket, uint64_t received) {
  wire::Writer body;
  body.command(wire::Command::kResume);
  body.raw(&wire::kMagic, sizeof(wire::kMagic));
  body.varint(wire::kVersion);
  body.raw(ticket.data(), ticket.size());
  body.string("");
  body.varint(received);
  std::vector<uint8_t> frame(wire::kFrameHeaderBytes);
  wire::put_frame_header(frame.data(), body.size());
  frame.insert(frame.end(), body.bytes().begin(), body.bytes().end());
  return frame;
}

// Few bytes, which a fresh connection takes.
bool send_all(int fd, ByteStream* stream, const std::vector<uint8_t>& bytes) {
  const ssize_t count = stream != nullptr ? stream->send(bytes.data(), bytes.size()) : ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count != static_cast<ssize_t>(bytes.size())) errno = ECONNRESET;
  return count == static_cast<ssize_t>(bytes.size());
}

// Receives all of it. False, with errno, if the connection broke (ECONNRESET), or nothing came for so long (ETIMEDOUT). Throws Over.
bool receive_all(int fd, ByteStream* stream, uint8_t* target, size_t bytes, std::chrono::milliseconds patience, const std::atomic<bool>& over) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (size_t done = 0; done < bytes;) {
    if (over) throw Over();
    const ssize_t count = stream != nullptr ? stream->receive(target + done, bytes - done) : ::recv(fd, target + done, bytes - done, MSG_DONTWAIT);
    const bool nothing = count < 0 && (is_full() || errno == EINTR);
    if (count > 0) done += static_cast<size_t>(count);
    if (count > 0) continue;
    if (nothing && std::chrono::steady_clock::now() < until) {
      pollfd entry{fd, POLLIN, 0};
      ::poll(&entry, 1, kPollMs);
      continue;
    }
    errno = nothing ? ETIMEDOUT : ECONNRESET;
    return false;
  }
  return true;
}

}  // namespace

void ResumableLink::begin(int socket, std::unique_ptr<ByteStream> bytes, Worker worker) {
  const std::lock_guard lock(mutex_);
  bytes_ = std::move(bytes);
  end_when_silent(socket, worker.grace);
  worker_ = std::move(worker);
  socket_ = socket;
  sent_ = {};
  received_ = {};
  over_.reset();
  moved_ = Clock::now();
  doubts_ = 0;
  sent_.put_control(wire::Control::kAcknowledge, 0);  // by this the worker knows that this side resumes
  flush();
  on_ = true;
}

void ResumableLink::stop(const std::string& why) {
  const std::lock_guard lock(mutex_);
  end(why);
}

void ResumableLink::reset() {
  stop("it was closed");
  on_ = false;
}

void ResumableLink::end(const std::string& why) {
  if (!over_) over_ = why;
  if (mending_) mending_->over = true;
  mending_.reset();
  const int fd = socket_.exchange(-1);
  if (fd < 0) return;
  ::shutdown(fd, SHUT_RDWR);  // who waits for it wakes up
  ::close(fd);
}

void ResumableLink::say_bye() {
  const std::lock_guard lock(mutex_);
  if (!is_on() || socket_ < 0 || !sent_.can_take_control()) return;
  sent_.put_control(wire::Control::kBye, received_.acknowledge());
  flush();
}

std::optional<std::string> ResumableLink::over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

ssize_t ResumableLink::put(const uint8_t* data, size_t bytes) { return bytes_ ? bytes_->send(data, bytes) : ::send(socket_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); }

ssize_t ResumableLink::get(uint8_t* target, size_t bytes) { return bytes_ ? bytes_->receive(target, bytes) : ::recv(socket_, target, bytes, MSG_DONTWAIT); }

// Whether all went that was to go.
bool ResumableLink::flush() {
  while (socket_ >= 0 && has_left()) {
    const ssize_t count = sent_.left() > 0 ? put(sent_.next(), sent_.left()) : bytes_->flush();
    if (count < 0 && is_full()) return false;
    if (count < 0 && errno != EINTR) cut();
    if (count < 0) continue;
    sent_.advance(static_cast<size_t>(count));
    moved_ = Clock::now();
  }
  return socket_ >= 0;
}

bool ResumableLink::acknowledge() {
  if (!flush()) return false;
  if (!received_.is_to_be_acknowledged() || !sent_.can_take_control()) return true;
  sent_.put_control(wire::Control::kAcknowledge, received_.acknowledge());
  return flush();
}

std::optional<size_t> ResumableLink::send(const uint8_t* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!acknowledge() || sent_.is_full()) return std::nullopt;
  const ssize_t count = put(data, bytes);
  if (count < 0 && is_full()) return std::nullopt;
  if (count < 0 && errno != EINTR) {
    cut();
    return std::nullopt;
  }
  if (count <= 0) return 0;
  sent_.note_sent(data, static_cast<size_t>(count));
  moved_ = Clock::now();
  return static_cast<size_t>(count);
}

ssize_t ResumableLink::receive(uint8_t* target, size_t bytes) {
  const std::lock_guard lock(mutex_);
  ssize_t count = static_cast<ssize_t>(received_.read(target, bytes));
  if (count == 0 && socket_ >= 0) {
    const size_t direct = std::min(bytes, received_.direct_bytes());
    if (direct >= direct_bytes_min()) {
      count = get(target, direct);
      if (count > 0) received_.note_direct(static_cast<size_t>(count));
      if (count == 0 || (count < 0 && !is_full() && errno != EINTR)) cut();
      if (count > 0) moved_ = Clock::now();
    } else if (fill() > 0) {
      count = static_cast<ssize_t>(received_.read(target, bytes));
    }
  }
  if (count > 0) {
    doubts_ = 0;
    acknowledge();
    return count;
  }
  errno = EAGAIN;
  return -1;
}

// Takes what came into the buffer. As recv(2).
ssize_t ResumableLink::fill() {
  const auto receive = [this](uint8_t* target, size_t bytes) { return get(target, bytes); };
  const auto take = [this](wire::Control, uint64_t count) { sent_.acknowledge(count); };
  try {
    const ssize_t count = received_.fill(receive, take);
    if (count == 0 || (count < 0 && !is_full() && errno != EINTR)) cut();
    if (count > 0) moved_ = Clock::now();
    return count;
  } catch (const wire::WireError& error) {
    end(error.what());
    return -1;
  }
}

void ResumableLink::wait(short events) {
  int fd = -1;
  short wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    if (over_ || ((events & POLLIN) != 0 && received_.available() > 0)) return;
    suspect();
    fd = socket_;
    if ((events & POLLIN) != 0 || received_.has_room()) wanted |= POLLIN;
    if (has_left() || ((events & POLLOUT) != 0 && !sent_.is_full())) wanted |= POLLOUT;
  }
  pollfd entry{fd, wanted, 0};
  ::poll(&entry, 1, fd < 0 ? kMendingPollMs : kPollMs);
  const std::lock_guard lock(mutex_);
  if (socket_ < 0 || socket_ != fd) return;
  // An acknowledgement that is waited for may be behind what nobody reads yet.
  if ((entry.revents & POLLIN) != 0 && (events & POLLIN) == 0) fill();
  if ((entry.revents & POLLOUT) != 0) flush();
}

bool ResumableLink::has_unread() const {
  int unread = 0;
  return socket_ < 0 || (::ioctl(socket_, SIOCOUTQ, &unread) == 0 && unread > 0);
}

std::chrono::milliseconds ResumableLink::patience() const { return worker_.grace / kPatienceParts * (1 << std::min(doubts_, kDoublingsMax)); }

// A thread waits, and nothing moves: the worker is busy, or a direction of the connection is dead. To make it again does no harm.
void ResumableLink::suspect() {
  int queued = 0;
  if (socket_ < 0 || worker_.grace.count() == 0 || Clock::now() - moved_ < patience()) return;
  ::ioctl(socket_, SIOCOUTQ, &queued);
  moved_ = Clock::now();
  if (std::exchange(queued_, queued) != queued) return;
  ++doubts_;
  cut();
}

void ResumableLink::cut() {
  const int fd = socket_.exchange(-1);
  if (fd >= 0) ::close(fd);
  if (over_) return;
  if (worker_.grace.count() == 0) return end("the worker ended");
  if (mending_) mending_->over = true;
  mending_ = std::make_shared<Mending>();
  std::thread([this, mending = mending_] { mend(mending); }).detach();
}

// The thread

void ResumableLink::tell_once(bool& told) const {
  if (std::exchange(told, true) || !tell_) return;
  std::thread([tell = tell_] {
    try {
      tell();
    } catch (const std::exception&) {  // of who is told; the connection is made again all the same
    }
  }).detach();
}

// A worker that is reached and does not answer is busy, however long that takes. The pool tells when it is dead.
void ResumableLink::mend(const std::shared_ptr<Mending>& mending) {
  ::pthread_setname_np(::pthread_self(), "forebay-link");
  Worker worker;
  std::chrono::milliseconds answers_within{};
  {
    const std::lock_guard lock(mutex_);
    worker = worker_;
    answers_within = patience();
  }
  bool told = false;
  auto reached = Clock::now();
  const auto look = [&] {
    if (mending->over) throw Over();
    if (Clock::now() - reached > kTellAfter) tell_once(told);
  };
  try {
    while (Clock::now() - reached < worker.grace) {
      const int fd = worker.address.tcp().connect(kConnectPatience, look);
      const auto answer = fd < 0 ? Answer::kClosed : resume(mending, fd, answers_within);
      if (answer == Answer::kFinal) return;
      if (answer == Answer::kNone) {
        reached = Clock::now();
        answers_within = std::min(answers_within * 2, worker.grace / 2);
      }
      std::this_thread::sleep_for(kRetry);
      look();
    }
  } catch (const Over&) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!mending->over) end("the worker was not reached for " + std::to_string(worker.grace.count() / 1000) + " seconds");
}

// Owns the socket.
ResumableLink::Answer ResumableLink::resume(const std::shared_ptr<Mending>& mending, int fd, std::chrono::milliseconds patience) {
  try {
    std::vector<uint8_t> greeting;
    StreamAddress address;
    {
      const std::lock_guard lock(mutex_);
      greeting = resume_frame(worker_.ticket, received_.resume());
      address = worker_.address;
    }
    const auto check = [&mending] {
      if (mending->over) throw Over();
    };
    auto stream = address.is_clear() ? nullptr : address.greet(fd, patience, check);
    std::vector<uint8_t> answer(wire::kFrameHeaderBytes);
    bool answered = (address.is_clear() || stream) && send_all(fd, stream.get(), greeting);
    answered = answered && receive_all(fd, stream.get(), answer.data(), answer.size(), patience, mending->over);
    if (answered) {
      answer.resize(wire::get_frame_header(answer.data()));
      answered = receive_all(fd, stream.get(), answer.data(), answer.size(), patience, mending->over);
    }
    if (!answered) {
      const auto answer = errno == ETIMEDOUT ? Answer::kNone : Answer::kClosed;
      ::close(fd);
      return answer;
    }
    wire::Reader body(answer.data(), answer.size());
    const auto reply = static_cast<wire::Reply>(body.u8());
    const std::lock_guard lock(mutex_);
    if (mending->over) throw Over();
    if (reply != wire::Reply::kResumed) throw wire::WireError("the worker refused: " + (reply == wire::Reply::kRefused ? body.string(wire::kMessageBytesMax) : "no answer to a RESUME"));
    sent_.resume(body.varint());
    end_when_silent(fd, worker_.grace);
    bytes_ = std::move(stream);
    socket_ = fd;
    moved_ = Clock::now();
    fill();  // what came with the answer
  } catch (const Over&) {
    ::close(fd);
    throw;
  } catch (const ProxyRefused&) {  // that of another network may let nobody through
    ::close(fd);
    return Answer::kClosed;
  } catch (const TlsError& error) {
    ::close(fd);
    const std::lock_guard lock(mutex_);
    if (worker_.address.is_edge()) return Answer::kClosed;  // on the way home another network may answer in the hub's place for a while
    if (!mending->over) end(error.what());
    return Answer::kFinal;
  } catch (const std::runtime_error& error) {  // of wire.h, or of an edge
    ::close(fd);
    const std::lock_guard lock(mutex_);
    if (!mending->over) end(error.what());
    return Answer::kFinal;
  }
  send_rest(mending);
  return Answer::kFinal;
}

// Sends again what the worker has not received. Others send behind it.
void ResumableLink::send_rest(const std::shared_ptr<Mending>& mending) {
  for (;;) {
    int fd = -1;
    {
      const std::lock_guard lock(mutex_);
      if (mending->over || socket_ < 0 || flush()) return;
      if (received_.has_room()) fill();
      fd = socket_;
    }
    pollfd entry{fd, POLLOUT | POLLIN, 0};
    ::poll(&entry, 1, kMendingPollMs);
  }
}

void ResumableLink::forked() {
  new (&mutex_) std::mutex;
  new (&mending_) std::shared_ptr<Mending>;
  new (&bytes_) std::unique_ptr<ByteStream>;
  const int fd = socket_.exchange(-1);
  if (fd >= 0) ::close(fd);
  on_ = false;
}

}  // namespace forebay
