#include "call/effects.h"

#include <memory>

#include "call/description.h"

namespace forebay::worker {

namespace {

constexpr uint64_t kLongMessagesMax = 16384;  // of one session; storages that were never made keep the message that says why
constexpr size_t kShortMessageBytes = 256;
constexpr const char* kDeviceLost = "the device failed; the tensors on it are lost, and new ones get a new session: ";

}  // namespace

void Effects::never_make(const Effect& effect) {
  for (size_t index = 0; index < effect.kinds.size(); ++index) {
    if (effect.kinds[index] == wire::Word::kNew) never_make(effect.words[index], effect.cause);
  }
}

void Effects::hear(uint64_t number) {
  if (stopped_ && stopped_->number == number) stopped_.reset();
}

Cause Effects::stop(Failure failure) {
  const size_t most = failures_++ < kLongMessagesMax ? wire::kMessageBytesMax : kShortMessageBytes;
  failure.number = failures_;
  if (explain_memory_ && failure.code == wire::FailureCode::kOutOfMemory) failure.message = explain_memory_(failure.message);
  failure.message = told_text(std::move(failure.message), most);
  failure.inputs = told_text(std::move(failure.inputs), most);
  stopped_ = std::make_shared<const Failure>(std::move(failure));
  return stopped_;
}

Cause Effects::stop(const CommandError& error, const std::string& op, uint64_t sequence) { return stop({0, error.code, sequence, op, error.what(), ""}); }

Cause Effects::stop_now(const std::string& op, uint64_t sequence, const Plan* plan) {
  bool by_device = false;
  const auto error = command_error_of_current_exception(by_device);
  const bool device_lost = by_device && !device_.recovers();
  const auto code = device_lost ? wire::FailureCode::kDeviceLost : error.code;
  auto cause = stop({0, code, sequence, op, (device_lost ? kDeviceLost : "") + std::string(error.what()), plan == nullptr ? "" : inputs_of(*plan)});
  if (device_lost && !lost_) lost_ = cause;
  return cause;
}

Failure Effects::derived(const Failure& cause) {
  Failure failure = cause;
  failure.number = 0;
  failure.code = wire::FailureCode::kNeverMade;
  return failure;
}

void Effects::report(uint64_t request, const Failure& failure) {
  wire::Writer head;
  head.reply(wire::Reply::kFailure);
  head.varint(request);
  head.varint(failure.number);
  head.u8(static_cast<uint8_t>(failure.code));
  head.u64(failure.sequence);
  head.string(failure.op);
  head.string(failure.message);
  head.string(failure.inputs);
  replies_.send(head, nullptr, 0);
}

Cause Effects::announced(Cause cause) {
  report(0, *cause);
  return cause;
}

void Effects::resume(uint64_t next_call, uint64_t failures, const Cause& unheard) {
  next_call_ = next_call;
  failures_ = failures;
  if (!unheard) return;
  Failure last = *unheard;
  last.number = failures;
  stopped_ = std::make_shared<const Failure>(std::move(last));
}

}  // namespace forebay::worker
