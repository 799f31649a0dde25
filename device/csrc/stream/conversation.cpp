#include "stream/conversation.h"

#include <torch/csrc/Exceptions.h>

#include <utility>

#include "base/locations.h"
#include "base/python.h"
#include "replay/frames.h"
#include "stream/stream.h"

namespace forebay {

using wire::Command;
using wire::Reply;

bool Conversation::hold(uint64_t generation, const std::function<bool(wire::Writer&, uint64_t)>& append) {
  const CommandStream::Question question(stream_);
  auto& commands = stream_.commands_;
  const uint64_t request = stream_.new_request();
  uint64_t sequence = 0;
  bool unwanted = false;
  const auto record = [&] {
    if (stream_.session_.away || stream_.failures_.has_lost() || generation != stream_.generation()) return false;
    commands.tracer().say_frees();
    unwanted = !append(commands.cut(), request);
    if (unwanted) return false;
    sequence = commands.next_call();
    commands.appended_to_send();
    commands.put_question();
    return true;
  };
  while (!begin(generation, record)) {
    if (unwanted) return false;
  }
  note_location(stream_.device(), sequence);
  go_on(request, [&](Reply reply, wire::Reader& body) { stream_.check_answer(reply, body, sequence); });
  return true;
}

bool Conversation::begin(uint64_t generation, const std::function<bool()>& record) {
  sending_ = {};
  stream_.lease_.need();
  stream_.check_stopped();
  stream_.check_generation(generation);
  sending_ = stream_.lock_to_send();
  return stream_.sender_.take_alone(record);
}

void Conversation::go_on(uint64_t request, const std::function<void(Reply, wire::Reader&)>& take) {
  send_rest();
  try {
    for (bool done = false; !done;) {
      through_interrupts([&] {
        stream_.receiver_.receive(request, [&](Reply reply, wire::Reader& body) {
          if (reply == Reply::kCallback) return answer(body);
          done = true;
          sending_ = {};
          take(reply, body);
        });
      });
    }
  } catch (const c10::Error&) {
    if (!interrupt_) throw;
  }
  if (interrupt_) std::rethrow_exception(interrupt_);
}

void Conversation::send_rest() {
  through_interrupts([this] { stream_.sender_.send_rest(); });
}

void Conversation::answer(wire::Reader& body) {
  const uint64_t number = body.varint();
  const auto returned = called(number, wire::get_callback_arrays(body));
  stream_.sender_.put(framed([&](wire::Writer& out) {
    out.command(Command::kReturned);
    const auto* arrays = std::get_if<wire::CallbackArrays>(&returned);
    out.u8(arrays != nullptr);
    if (arrays != nullptr) {
      wire::put_callback_arrays(out, *arrays);
    } else {
      out.string(std::get<std::string>(returned).substr(0, wire::kMessageBytesMax));
    }
  }));
  send_rest();
}

CallbackAnswer Conversation::called(uint64_t number, const wire::CallbackArrays& arrays) {
  if (interrupt_) return "interrupted";
  const InCallback running;
  try {
    return answer_(number, arrays);
  } catch (const python_error&) {
    interrupt_ = std::current_exception();
    return "interrupted";
  }
}

void Conversation::through_interrupts(const std::function<void()>& work) {
  for (;;) {
    try {
      return work();
    } catch (const python_error&) {
      if (!interrupt_) interrupt_ = std::current_exception();
    }
  }
}

}  // namespace forebay
