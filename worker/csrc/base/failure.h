// What can go wrong with one command without ending the session.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include <forebay/wire.h>

namespace forebay::worker {

// One failed command, as the client is told of it.
struct Failure {
  uint64_t number;  // among the session's, from 1
  wire::FailureCode code;
  uint64_t sequence;
  std::string op;
  std::string message;  // the operator's own
  std::string inputs;   // what it was given; may be empty
};

// Shared by the storages that were never made for it.
using Cause = std::shared_ptr<const Failure>;

// This command failed; the session goes on. A wire::WireError ends the session.
struct CommandError : std::runtime_error {
  CommandError(wire::FailureCode failure_code, const std::string& message) : std::runtime_error(message), code(failure_code) {}
  wire::FailureCode code;
};

// A message as it may leave this process: at most so many bytes, in ASCII, since it may hold bytes that the client sent; without addresses.
std::string told_text(std::string text, size_t most);

bool is_out_of_memory(const std::exception_ptr& error);

// Turns the exception being handled into a CommandError's code and text. `by_device` is set where the device itself reported an error.
CommandError command_error_of_current_exception(bool& by_device);

}  // namespace forebay::worker
