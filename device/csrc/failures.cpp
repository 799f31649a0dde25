// What a worker tells of a failing command: it carries out nothing from there on, until this side says that the program has heard of it.
#include "failures.h"

#include <c10/util/Exception.h>
#include <sys/socket.h>

#include <utility>

#include "inference.h"
#include "locations.h"
#include "recorder.h"
#include "stream.h"

namespace forebay {
namespace {

using namespace std::chrono_literals;
using wire::Command;
using wire::FailureCode;
using wire::Reply;

constexpr auto kOwnPatience = 1s;  // that the thread which issued a failing call has to hear of it before any other does

// As a RuntimeError, which is what CUDA's late failures are: an IndexError out of another call would end somebody's loop without a
// word. `at_once`, from the very call that failed, as what the operator itself would have thrown.
[[noreturn]] void throw_as(FailureCode code, bool at_once, const std::string& text) {
  TORCH_CHECK_WITH(OutOfMemoryError, code != FailureCode::kOutOfMemory, text);
  TORCH_CHECK_NOT_IMPLEMENTED(code != FailureCode::kUnsupported, text);
  TORCH_CHECK_LINALG(code != FailureCode::kLinalg, text);
  TORCH_CHECK_INDEX(!at_once || code != FailureCode::kIndex, text);
  TORCH_CHECK_VALUE(!at_once || code != FailureCode::kValue, text);
  TORCH_CHECK_TYPE(!at_once || code != FailureCode::kType, text);
  TORCH_CHECK(false, text);
}

// What this side says of the operator's results was wrong: from the next call on the worker is asked. Returns a sentence that says so.
std::string distrust(const std::string& op) {
  ask_from_now_on(op);
  for (c10::DeviceIndex device = 0; device < kDevicesMax; ++device) Recorder::of(device).forget_operator(op);
  return "\n  the next call of " + op + " asks the device for what it gives: run this again";
}

// Of a failure that the program hears of later than at the call.
std::string late_text(c10::DeviceIndex device, const ToldFailure& failure) {
  std::string text = failure.op + ": " + failure.message;
  if (!failure.inputs.empty()) text += "\n  with " + failure.inputs;
  const std::string where = location_of(device, failure.sequence);
  if (!where.empty()) text += "\n  issued at " + where;
  return text;
}

}  // namespace

ToldFailure told_failure(wire::Reader& body, uint64_t generation) {
  ToldFailure failure;
  failure.number = body.varint();
  failure.code = static_cast<FailureCode>(body.u8());
  failure.sequence = body.u64();
  failure.op = body.string();
  failure.message = body.string(wire::kMessageBytesMax);
  failure.inputs = body.string(wire::kMessageBytesMax);
  failure.generation = generation;
  return failure;
}

void CommandStream::check_failure(Reply reply, wire::Reader& body, std::optional<uint64_t> own) {
  if (reply == Reply::kFailure) throw_failure(told_failure(body, heard_generation_), own);
}

void CommandStream::throw_failure(const ToldFailure& failure, std::optional<uint64_t> own) {
  hear(failure);
  forget_told(failure);
  const bool at_once = own == failure.sequence && failure.code != FailureCode::kNeverMade;
  const std::string more = failure.code == FailureCode::kGeometry ? distrust(failure.op) : "";
  const std::string text = at_once && more.empty() ? failure.message : late_text(device_, failure) + more;
  if (failure.code == FailureCode::kDeviceLost && failure.generation == generation()) lose(failure.message);  // nothing would come of a lease
  throw_as(failure.code, at_once, text);
}

// From here on the worker carries out again what it is told. Nothing that was recorded since the failing command has come about.
void CommandStream::hear(const ToldFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure.generation != generation() || failure.number <= heard()) return;
    heard_ = failure.number;
    open_frame();
    pending_.command(Command::kHeard);
    pending_.varint(failure.number);
    appended();
    random_calls_.take_back_from(failure.sequence);
    tell_others(failure);
  }
  contents_.clear();
}

// Under mutex_. A thread that recorded something since has to hear of it as well, be it on its own tensors: it did not come about.
void CommandStream::tell_others(const ToldFailure& failure) {
  const std::lock_guard lock(notice_mutex_);
  if (notice_ && notice_->number <= failure.number) notice_.reset();
  if (failure.code != FailureCode::kNeverMade) {  // else its sequence is that of the first failure
    for (uint64_t sequence = failure.sequence; sequence < calls_; ++sequence) {
      if (const ThreadTag thread = thread_of(device_, sequence); thread != 0) also_told_.insert_or_assign(thread, failure);
    }
    const uint64_t done = failure.sequence + (failure.op.find("::") == std::string::npos ? 0 : 1);  // else it is the next call's
    for (const auto& [thread, calls_before] : transfers_) {
      if (calls_before >= done) also_told_.insert_or_assign(thread, failure);
    }
  }
  transfers_.clear();
  noticed_ = notice_ || !also_told_.empty();
}

// The current thread hears of it now, whoever took notice first.
void CommandStream::forget_told(const ToldFailure& failure) {
  const std::lock_guard lock(notice_mutex_);
  const auto told = also_told_.find(current_thread());
  if (told != also_told_.end() && told->second.number <= failure.number) also_told_.erase(told);
  noticed_ = notice_ || !also_told_.empty();
}

bool CommandStream::has_lost() {
  if (!noticed_.load(std::memory_order_relaxed)) [[likely]] return false;
  const std::lock_guard lock(notice_mutex_);
  return also_told_.contains(current_thread());
}

void CommandStream::take_notice(Reply reply, wire::Reader& body) {
  if (reply != Reply::kFailure) fail_connection("an answer to no question");
  ToldFailure failure = told_failure(body, heard_generation_);
  if (failure.number <= heard()) return;
  const std::lock_guard lock(notice_mutex_);
  notice_ = std::move(failure);
  noticed_at_ = std::chrono::steady_clock::now();
  noticed_ = true;
}

void CommandStream::throw_notice(std::optional<uint64_t> own) {
  std::unique_lock lock(notice_mutex_);
  if (const auto told = also_told_.find(current_thread()); told != also_told_.end()) {
    const ToldFailure failure = told->second;
    lock.unlock();
    throw_failure(failure);
  }
  if (!notice_) return;
  const bool ours = notice_->code == FailureCode::kNeverMade || thread_of(device_, notice_->sequence) == current_thread();
  if (!ours && std::chrono::steady_clock::now() - noticed_at_ < kOwnPatience) return;
  const ToldFailure failure = *notice_;
  lock.unlock();
  throw_failure(failure, own);
}

// Under mutex_.
void CommandStream::forget_failures() {
  heard_ = 0;
  random_calls_.clear();
  transfers_.clear();
  const std::lock_guard lock(notice_mutex_);
  notice_.reset();
  also_told_.clear();
  noticed_ = false;
}

// Looks whether the worker has stopped, where nobody waits for an answer.
void CommandStream::listen() {
  const std::unique_lock lock(receive_mutex_, std::try_to_lock);
  if (!lock || !connected_ || away_ || !has_whole_frame()) return;
  wire::Reader body(incoming_.data() + wire::kFrameHeaderBytes, filled_ - wire::kFrameHeaderBytes);
  const auto reply = static_cast<Reply>(body.u8());
  if (reply != Reply::kFailure || body.varint() != 0) return;  // whoever waits next takes it
  take_notice(reply, body);
  filled_ = 0;
}

// Receives of the next frame what has come.
bool CommandStream::has_whole_frame() {
  for (size_t whole = wire::kFrameHeaderBytes;;) {
    if (filled_ >= wire::kFrameHeaderBytes) whole = wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data());
    if (filled_ == whole && whole > wire::kFrameHeaderBytes) return true;
    if (incoming_.size() < whole) incoming_.resize(whole);
    const ssize_t count = receive_at_once(incoming_.data() + filled_, whole - filled_);
    if (count <= 0) return false;
    filled_ += static_cast<size_t>(count);
  }
}

}  // namespace forebay
