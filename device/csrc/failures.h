// A failure of the worker's, as it is told to the program.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/wire.h"
#include "generator.h"

namespace forebay {

struct ToldFailure {
  uint64_t number;      // of the failure that stopped the stream; 0: it goes on
  wire::FailureCode code;
  uint64_t sequence;    // of the call
  std::string op;
  std::string message;  // the operator's own
  std::string inputs;   // what it was given; may be empty
  uint64_t generation;  // of the session
};

// Reads a FAILURE, behind its request.
ToldFailure told_failure(wire::Reader& body, uint64_t generation);

}  // namespace forebay
