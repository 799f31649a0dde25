// A program that is carried out and calls functions of this process. The thread that waits for it calls them.
//
// It holds the locks of the receiver and the sender: nothing else is sent behind the program until it is done, so the worker reads answers alone. Other
// threads go on recording. An interrupt is kept until the program is done; its callbacks are answered in one sentence from then on.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <variant>

#include "forebay/programs.h"

namespace forebay {

class CommandStream;

// What a function returned, or why nothing.
using CallbackAnswer = std::variant<wire::CallbackArrays, std::string>;
using AnswerCallback = std::function<CallbackAnswer(uint64_t number, const wire::CallbackArrays& arrays)>;

class Conversation {
 public:
  // `answer` is called by this thread, and may raise.
  Conversation(CommandStream& stream, const AnswerCallback& answer) : stream_(stream), answer_(answer) {}

  // Has a program carried out, and waits for it. `append` writes the command under the lock of the commands, unless it returns false.
  bool hold(uint64_t generation, const std::function<bool(wire::Writer&, uint64_t request)>& append);

 private:
  // Takes the sender's lock, and records by `record`; whether that returned true.
  bool begin(uint64_t generation, const std::function<bool()>& record);
  // Answers what the program calls until its own answer comes, which `take` gets once the sender's lock is free.
  void go_on(uint64_t request, const std::function<void(wire::Reply, wire::Reader&)>& take);
  void send_rest();
  void answer(wire::Reader& body);
  CallbackAnswer called(uint64_t number, const wire::CallbackArrays& arrays);
  // Does it again after an interrupt.
  void through_interrupts(const std::function<void()>& work);

  CommandStream& stream_;
  const AnswerCallback& answer_;
  std::unique_lock<std::mutex> sending_{};
  std::exception_ptr interrupt_{};
};

}  // namespace forebay
