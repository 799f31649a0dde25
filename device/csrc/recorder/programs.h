// Whole programs, of other frameworks than PyTorch: they go to the worker once, and their executions are recorded.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "forebay/programs.h"
#include "stream/conversation.h"
#include "stream/stream.h"

namespace forebay {

struct WholeProgram {
  uint64_t number;          // of this process
  std::string_view module;  // StableHLO; the caller's, as the next one is
  std::span<const uint8_t> placement;  // as wire::put_placement writes it
  bool calls_back = false;  // functions of this process
};

// How functions that programs call are called, by number.
void answer_callbacks_by(AnswerCallback answer);

// Sends the worker a program, unless it has that already, and waits until it is compiled; takes a lease. `take` gets what it takes and makes, where
// the worker is asked. Throws where it cannot be compiled.
void compile_program(CommandStream& stream, const WholeProgram& program, const std::function<void(const wire::ProgramSignature&)>& take);

// Records an execution, of a program that was compiled once, on storages of the device; takes a lease. A worker that has not got it yet gets it, and
// is waited for, as is a program that calls back. Returns the storages that it makes, of so many bytes each. Throws OutOfMemoryError, or where a storage is lost.
std::vector<c10::Storage> execute_program(CommandStream& stream, const WholeProgram& program, const std::vector<c10::Storage>& inputs, const std::vector<int64_t>& output_bytes);

}  // namespace forebay
