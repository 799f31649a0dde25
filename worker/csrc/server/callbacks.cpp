#include "server/callbacks.h"

#include <utility>

namespace forebay::worker {

void Callbacks::begin(uint64_t request) {
  request_ = request;
  on_ = true;
}

void Callbacks::end() {
  on_ = false;
  if (const auto broken = std::exchange(broken_, nullptr)) std::rethrow_exception(broken);
}

std::variant<wire::CallbackArrays, std::string> Callbacks::call(uint64_t number, const wire::CallbackArrays& arrays) {
  const std::lock_guard one(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  try {
    return ask(number, arrays);
  } catch (...) {
    broken_ = std::current_exception();
    throw;
  }
}

// The client sends nothing behind what has the program carried out, until it has the program's answer: only RETURNED comes.
std::variant<wire::CallbackArrays, std::string> Callbacks::ask(uint64_t number, const wire::CallbackArrays& arrays) {
  wire::Writer head;
  head.reply(wire::Reply::kCallback);
  head.varint(request_);
  head.varint(number);
  wire::put_callback_arrays(head, arrays);
  connection_.send(head, nullptr, 0);
  Inbox inbox;
  while (!inbox.is_complete()) {
    const auto arrival = connection_.receive(inbox);
    if (arrival == Inbox::Arrival::kEnd) throw ClientLost();
    if (arrival == Inbox::Arrival::kNothing) wait_();
  }
  wire::Reader in = inbox.body_so_far();
  if (static_cast<wire::Command>(in.u8()) != wire::Command::kReturned) throw wire::WireError("another command than RETURNED while a program calls back");
  std::variant<wire::CallbackArrays, std::string> returned;
  if (in.u8() != 0) {
    returned = wire::get_callback_arrays(in);
  } else {
    returned = in.string(wire::kMessageBytesMax);
  }
  if (!in.done()) throw wire::WireError("a RETURNED among other commands");
  return returned;
}

}  // namespace forebay::worker
