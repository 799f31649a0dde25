// What programs call back to: functions of the session's client, over its connection. The thread that serves the session waits for the program meanwhile,
// and nothing else uses the connection.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <variant>

#include "base/inbox.h"
#include "call/program.h"
#include "server/connection.h"

namespace forebay::worker {

class Callbacks final : public CallbackHost {
 public:
  // `wait`: returns when the client may have sent something; throws where it is gone, or this worker is to end.
  Callbacks(Connection& connection, std::function<void()> wait) : connection_(connection), wait_(std::move(wait)) {}

  void begin(uint64_t request) override;
  void end() override;
  std::variant<wire::CallbackArrays, std::string> call(uint64_t number, const wire::CallbackArrays& arrays) override;
  // Whether a program runs that may call back.
  bool are_on() const { return on_; }

 private:
  std::variant<wire::CallbackArrays, std::string> ask(uint64_t number, const wire::CallbackArrays& arrays);

  Connection& connection_;
  const std::function<void()> wait_;
  std::mutex mutex_;             // one call at a time
  bool on_ = false;
  uint64_t request_ = 0;
  std::exception_ptr broken_{};  // why the client is asked no more
};

}  // namespace forebay::worker
