#include "stream/failures.h"

#include <c10/util/Exception.h>

#include <new>
#include <utility>

namespace forebay {
namespace {

using namespace std::chrono_literals;
using wire::Command;
using wire::FailureCode;

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

void Failures::raise(const ToldFailure& failure, std::optional<uint64_t> own) {
  hear(failure);
  forget_told(failure);
  const bool at_once = own == failure.sequence && failure.code != FailureCode::kNeverMade;
  const std::string more = failure.code == FailureCode::kGeometry ? distrust(failure.op) : "";
  const std::string text = at_once && more.empty() ? failure.message : late_text(device_, failure) + more;
  if (failure.code == FailureCode::kDeviceLost && failure.generation == session_.generation) lose_(failure.message);  // a lease would be of no use
  throw_as(failure.code, at_once, text);
}

// Returns a sentence that says so.
std::string Failures::distrust(const std::string& op) {
  if (auto* knowledge = knowledge_.load()) knowledge->distrust(op);
  return "\n  the next call of " + op + " asks the device for what it gives: run this again";
}

// From here on the worker executes commands again. Nothing that was recorded since the failing command was executed.
void Failures::hear(const ToldFailure& failure) {
  {
    const std::lock_guard lock(commands_.mutex());
    if (failure.generation != session_.generation || failure.number <= heard()) return;
    heard_ = failure.number;
    auto& out = commands_.command();
    out.command(Command::kHeard);
    out.varint(failure.number);
    commands_.appended();
    commands_.random_calls().take_back_from(failure.sequence);
    tell_others(failure);
  }
  contents_.clear();
}

// Under the lock of the commands. A thread that recorded something since has to hear of it as well, even if that was on its own tensors.
void Failures::tell_others(const ToldFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (notice_ && notice_->number <= failure.number) notice_.reset();
  if (failure.code != FailureCode::kNeverMade) {  // else its sequence is that of the first failure
    for (uint64_t sequence = failure.sequence; sequence < commands_.upcoming_call(); ++sequence) {
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

// The current thread hears of it now, whichever thread took notice first.
void Failures::forget_told(const ToldFailure& failure) {
  const std::lock_guard lock(mutex_);
  const auto told = also_told_.find(current_thread());
  if (told != also_told_.end() && told->second.number <= failure.number) also_told_.erase(told);
  noticed_ = notice_ || !also_told_.empty();
}

bool Failures::has_lost() {
  if (!noticed_.load(std::memory_order_relaxed)) [[likely]] return false;
  const std::lock_guard lock(mutex_);
  return also_told_.contains(current_thread());
}

void Failures::take_notice(ToldFailure failure) {
  if (failure.number <= heard()) return;
  const std::lock_guard lock(mutex_);
  notice_ = std::move(failure);
  noticed_at_ = std::chrono::steady_clock::now();
  noticed_ = true;
}

void Failures::check_notice(std::optional<uint64_t> own) {
  std::unique_lock lock(mutex_);
  if (const auto told = also_told_.find(current_thread()); told != also_told_.end()) {
    const ToldFailure failure = told->second;
    lock.unlock();
    raise(failure);
  }
  if (!notice_) return;
  const bool ours = notice_->code == FailureCode::kNeverMade || thread_of(device_, notice_->sequence) == current_thread();
  if (!ours && std::chrono::steady_clock::now() - noticed_at_ < kOwnPatience) return;
  const ToldFailure failure = *notice_;
  lock.unlock();
  raise(failure, own);
}

void Failures::clear() {
  heard_ = 0;
  transfers_.clear();
  const std::lock_guard lock(mutex_);
  notice_.reset();
  also_told_.clear();
  noticed_ = false;
}

void Failures::forked() {
  new (&mutex_) std::mutex;
  new (&notice_) std::optional<ToldFailure>;
  new (&also_told_) std::map<ThreadTag, ToldFailure>;
  noticed_ = false;
}

}  // namespace forebay
