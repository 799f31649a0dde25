// Errors and events.
#include "objects.h"

namespace forebay::pjrt {
namespace {

Error* copy_of(const Error* error) { return error == nullptr ? nullptr : new Error(*error); }

void destroy_error(ErrorOf* arguments) { delete arguments->error; }
void tell_message(ErrorMessage* arguments) { arguments->message = text_of(arguments->error->message); }
void tell_code(ErrorCode& arguments) { arguments.code = arguments.error->code; }

[[noreturn]] void raise(const Error& error) { throw Refusal{error.code, error.message}; }

void await(EventOf& arguments) {
  if (const Error* error = arguments.event->await()) raise(*error);
}
void tell_error(EventOf& arguments) {
  if (arguments.event->error) raise(*arguments.event->error);
}
void destroy_event(EventOf& arguments) { delete arguments.event; }
void tell_readiness(EventReady& arguments) { arguments.is_ready = arguments.event->table == nullptr; }
// The thread that asks waits: it is the one that the program would wait on, and it looks at signals.
void call_when_ready(EventOnReady& arguments) { arguments.callback(copy_of(arguments.event->await()), arguments.context); }

Code code_of(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return Code::kOk;
    case Fault::kOutOfMemory:
      return Code::kResourceExhausted;
    case Fault::kUnsupported:
      return Code::kUnimplemented;
    case Fault::kInvalid:
      return Code::kInvalidArgument;
    case Fault::kInterrupted:
      return Code::kCancelled;
    case Fault::kFailed:
      break;
  }
  return Code::kFailedPrecondition;
}

}  // namespace

void check(Outcome outcome) {
  if (outcome.fault == Fault::kNone) return;
  const std::unique_ptr<char, void (*)(void*)> message(outcome.message, &std::free);
  throw Refusal{code_of(outcome.fault), message.get()};
}

const Error* Event::await() {
  if (const DeviceTable* asked = std::exchange(table, nullptr)) {
    try {
      check(asked->await(device));
    } catch (const Refusal& refusal) {
      error = std::make_unique<Error>(Error{refusal.code, refusal.message});
    }
  }
  return error.get();
}

void enter_events(Functions& functions) {
  functions.enter(Function::kError_Destroy, reinterpret_cast<void*>(&destroy_error));
  functions.enter(Function::kError_Message, reinterpret_cast<void*>(&tell_message));
  PJRT_SET(functions, Error_GetCode, tell_code);
  PJRT_SET(functions, Event_Await, await);
  PJRT_SET(functions, Event_Error, tell_error);
  PJRT_SET(functions, Event_Destroy, destroy_event);
  PJRT_SET(functions, Event_IsReady, tell_readiness);
  PJRT_SET(functions, Event_OnReady, call_when_ready);
}

}  // namespace forebay::pjrt
