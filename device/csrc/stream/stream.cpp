#include "stream/stream.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <array>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/devices.h"
#include "base/locations.h"
#include "base/profile.h"
#include "base/publication.h"
#include "base/python.h"
#include "base/settings.h"
#include "stream/handshake.h"

namespace forebay {

using wire::Command;
using wire::Reply;

namespace {

constexpr std::chrono::milliseconds kTornPause(1);

}  // namespace

// One for each device there may be; they outlive static destruction, since tensors may be freed that late.
struct Streams {
  std::array<CommandStream, kDevicesMax> list;

  static Streams& get() {
    static auto* streams = new Streams(std::make_index_sequence<kDevicesMax>());
    return *streams;
  }

 private:
  template <size_t... kDevices>
  explicit Streams(std::index_sequence<kDevices...>) : list{CommandStream(static_cast<c10::DeviceIndex>(kDevices))...} {}
};

CommandStream& CommandStream::of(c10::DeviceIndex device) { return Streams::get().list[static_cast<size_t>(device)]; }

CommandStream::CommandStream(c10::DeviceIndex device) : device_(device) {}

// In the child, which has this thread alone: no other holds a lock any more. A parent without a session leaves it free to have its own.
void CommandStream::forked() {
  lease_.forked();
  wakeup_.forked();
  contents_.forked();
  shared_.unmap();
  failures_.forked();
  connection_.forked();
  sender_.forked();
  downloads_.forked();
  receiver_.forked();
  ticker_.forked();
  images_.forked();
  session_.torn = 0;
  settling_ = false;
  counters_.answers = counters_.questions.load();
}

// Session

// The session's tensors are gone; what is recorded from now on belongs to the next one.
void CommandStream::abandon(const std::string& message) {
  lease_.close();
  contents_.clear();
  const std::lock_guard lock(commands_.mutex());
  session_.away = session_.broken = false;
  journal_.give_up();
  lease_.reset();
  lost_message_ = message;
  session_.generation.fetch_add(1);
  commands_.clear();
  if (auto* knowledge = failures_.knowledge()) knowledge->forget();
  failures_.clear();
}

void CommandStream::lose(const std::string& message) {
  const WithoutGil free;
  if (!session_.connected.exchange(false)) return;
  abandon(message);
  connection_.shut_down();
}

void CommandStream::refuse_generation() {
  TORCH_CHECK(!session_.forked, "a tensor of the virtual device cannot be used in a forked process; start processes with the 'spawn' method");
  const std::lock_guard lock(commands_.mutex());
  TORCH_CHECK(false, "this tensor is lost: ", lost_message_);
}

void CommandStream::fail_connection(const std::string& reason, bool gone) {
  if (gone && (goes_on() || session_.entering)) {
    session_.broken = true;
    lease_.close();
    connection_.shut_down();
    throw LinkBroken(reason);
  }
  const std::string message = "the connection to the worker broke (" + reason + "); the tensors on this device are lost, and new ones get a new session";
  if (session_.connected.exchange(false)) {
    abandon(message);
  } else if (receiver_.generation() != generation()) {
    refuse_generation();  // it was lost before, and why is known
  }
  TORCH_CHECK(false, message);
}

// Lease

void CommandStream::open_lease(uint64_t epoch, int64_t memory_bytes) {
  const std::lock_guard lock(commands_.mutex());
  if (session_.away || session_.broken) return;  // it was for the worker that the session has left
  lease_.open(epoch, memory_bytes);
}

bool CommandStream::mark() {
  const WithoutGil free;
  if (!lease_.stop()) return false;
  {
    const std::lock_guard lock(commands_.mutex());
    commands_.tracer().say_frees();
    auto& out = commands_.cut();
    const size_t begin = commands_.place();
    out.command(Command::kMark);
    out.varint(lease_.epoch());
    commands_.note_question(begin, 0);
    commands_.appended();
  }
  sender_.flush(Wait::kYes);
  return true;
}

// A thread that wants to go on while the session is between two workers waits for the lease that comes with the new one.

std::unique_lock<std::mutex> CommandStream::lock_to_append() {
  std::unique_lock lock(commands_.mutex());
  while (session_.away || failures_.has_lost()) [[unlikely]] {
    lock.unlock();
    check_stopped();
    lease_.need();
    lock.lock();
  }
  return lock;
}

std::unique_lock<std::mutex> CommandStream::lock_for(uint64_t generation) {
  auto lock = lock_to_append();
  if (generation != this->generation()) {
    lock.unlock();
    refuse_generation();
  }
  return lock;
}

std::unique_lock<std::mutex> CommandStream::lock_to_send() {
  std::unique_lock lock(sender_.mutex());
  while (session_.away) {
    lock.unlock();
    lease_.need();
    lock.lock();
  }
  return lock;
}

std::unique_lock<std::timed_mutex> CommandStream::lock_to_receive(bool is_torn) {
  refuse_in_callback();
  std::unique_lock lock(receiver_.mutex(), std::defer_lock);
  for (;;) {
    while (!lock.try_lock_for(std::chrono::milliseconds(kPollMs))) check_signals();
    const bool is_free = is_torn || session_.torn == 0;
    if (!session_.away && is_free) return lock;
    lock.unlock();
    if (is_free) {
      lease_.need();
    } else {
      check_signals();
      std::this_thread::sleep_for(kTornPause);
    }
  }
}

// Recording

void CommandStream::send_due() {
  if (!session_.connected.load(std::memory_order_relaxed)) return;
  const ActivityClock profiled(Activity::kSend, device_);
  commands_.due() == CommandBuffer::Due::kYes ? sender_.flush(Wait::kYes) : sender_.flush_early();
}

bool CommandStream::record(uint64_t generation, const std::function<bool(wire::Writer&)>& append) {
  lease_.need();
  check_stopped();
  uint64_t sequence = 0;
  {
    const auto lock = lock_for(generation);
    commands_.tracer().say_frees();
    if (!append(commands_.cut())) return false;
    sequence = commands_.next_call();
    commands_.appended();
  }
  note_location(device_, sequence);
  send_if_due();
  if (waits_for_each_call()) finish(sequence);
  return true;
}

// Waiting

// A thread that waits for an answer of a worker that dies waits for the same answer of the next one.
void CommandStream::receive(std::unique_lock<std::timed_mutex>& lock, const std::function<void()>& wait) {
  for (;;) {
    try {
      return wait();
    } catch (const LinkBroken&) {
      session_.torn.fetch_add(1);
      const auto whole = c10::make_scope_exit([this] { session_.torn.fetch_sub(1); });
      lock.unlock();
      lease_.need();
      lock = lock_to_receive(/*is_torn=*/true);
    }
  }
}

CommandStream::Question::Question(CommandStream& stream, std::optional<uint64_t> own) : clock_(stream.counters_.waited_ns), stream_(stream) {
  stream.lease_.need();
  stream.check_stopped(own);
  refuse_in_signal_handler();
  lock_ = stream.lock_to_receive();
  stream.counters_.questions.fetch_add(1, std::memory_order_relaxed);
}

CommandStream::Question::~Question() {
  if (!settled_) stream_.commands_.set_unsettled(true);
  if (std::uncaught_exceptions() > 0) stream_.wakeup_.wake();  // an interrupt may have left something to be sent
  stream_.settling_ = false;
  stream_.counters_.answers.fetch_add(1, std::memory_order_relaxed);
  stream_.shared_.set_in_use(false);
}

void CommandStream::Question::settles() {
  stream_.commands_.put_question();
  settled_ = false;
  stream_.settling_ = true;
  stream_.commands_.set_unsettled(false);
}

void CommandStream::await(std::optional<uint64_t> own) {
  const bool settled = !commands_.is_unsettled() && !settling_.load();
  check_stopped(own);  // after that: who hears of a failure tells the others before all counts as settled
  if (settled) return;
  const ActivityClock profiled(Activity::kSynchronize, device_);
  Question question(*this, own);
  const uint64_t request = new_request();
  {
    const auto lock = lock_to_append();
    auto& out = commands_.cut();
    const size_t begin = commands_.place();
    out.command(Command::kSync);
    out.varint(request);
    commands_.note_question(begin, request);
    commands_.appended_to_send();
    question.settles();
  }
  sender_.flush(Wait::kYes);
  question.receive([&] {
    receiver_.receive(request, [&](Reply reply, wire::Reader& body) {
      question.settled();
      check_answer(reply, body, own);
      note_busy(device_, body.varint());
    });
  });
  const auto failure = downloads_.take_failure();
  if (failure && (failure->number == 0 || failure->number > failures_.heard())) failures_.raise(*failure);
}

void CommandStream::check_answer(Reply reply, wire::Reader& body, std::optional<uint64_t> own) {
  if (reply == Reply::kFailure) failures_.raise(told_failure(body, receiver_.generation()), own);
}

void CommandStream::ask(uint64_t generation, const std::function<uint64_t(uint64_t)>& append, const std::function<void(wire::Reader&)>& take) {
  const ActivityClock profiled(Activity::kAsk, device_);
  Question question(*this);
  const uint64_t request = new_request();
  uint64_t sequence = 0;
  {
    const auto lock = lock_for(generation);
    commands_.tracer().say_frees();
    sequence = append(request);
    commands_.appended_to_send();
    commands_.put_question();
  }
  note_location(device_, sequence);
  sender_.flush(Wait::kYes);
  question.receive([&] {
    receiver_.receive(request, [&](Reply reply, wire::Reader& body) {
      check_answer(reply, body, sequence);
      take(body);
    });
  });
}

bool CommandStream::ask_aside(const std::function<bool(wire::Writer&, uint64_t)>& append, const Receiver::Take& take, AskedCommand::Kind kind) {
  const WithoutGil free;
  const WaitClock clock(counters_.waited_ns);
  auto receive_lock = lock_to_receive();
  const uint64_t request = new_request();
  images_.hold(true);  // the answer may come after that of an image
  const auto held = c10::make_scope_exit([this] { images_.hold(false); });
  {
    const std::lock_guard lock(commands_.mutex());
    auto& out = commands_.command();
    const size_t begin = commands_.place();
    if (!append(out, request)) return false;
    if (kind == AskedCommand::Kind::kDoor) commands_.note_meeting(begin, request, kind);
    else commands_.note_question(begin, request, kind);
    commands_.appended();
  }
  sender_.flush(Wait::kYes);
  receive(receive_lock, [&] { receiver_.receive(request, take); });
  return true;
}

void CommandStream::ask_aside(Command command, const std::function<void(wire::Reader&)>& take, const std::function<void(wire::Writer&)>& append) {
  const bool opens_door = command == Command::kDoor;
  if (opens_door) images_.join_group();
  if (opens_door && !commands_.meetings().are_known()) journal_.give_up();  // what other members sent is with the worker alone
  ask_aside(
      [&](wire::Writer& out, uint64_t request) {
        out.command(command);
        out.varint(request);
        if (append) append(out);
        return true;
      },
      [&](Reply reply, wire::Reader& body) {
        check_answer(reply, body);
        take(body);
      },
      opens_door ? AskedCommand::Kind::kDoor : AskedCommand::Kind::kAside);
}

}  // namespace forebay
