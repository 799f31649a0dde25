#include "recorder/programs.h"

#include <c10/util/Exception.h>

#include <numeric>

#include "recorder/recorder.h"
#include "runtime/storage.h"

namespace forebay {
namespace {

using wire::Command;
using wire::Reply;

[[noreturn]] void refuse_program(const ToldFailure& failure) {
  TORCH_CHECK_NOT_IMPLEMENTED(failure.code != wire::FailureCode::kUnsupported, failure.message);
  TORCH_CHECK_WITH(OutOfMemoryError, failure.code != wire::FailureCode::kOutOfMemory, failure.message);
  TORCH_CHECK_VALUE(failure.code != wire::FailureCode::kValue, failure.message);
  TORCH_CHECK(false, failure.message);
}

AnswerCallback& answer_callback() {
  static auto* answer = new AnswerCallback([](uint64_t, const wire::CallbackArrays&) -> CallbackAnswer { return "this process answers no callbacks"; });
  return *answer;
}

// An execution that is to be recorded.
struct Execution {
  CommandStream& stream;
  const WholeProgram& program;
  const std::vector<uint64_t>& inputs;
  uint64_t first_output;
  const std::vector<int64_t>& output_bytes;
  bool recorded = false;

  // False if the worker has no such program.
  bool record() {
    const auto put_asking = [this](wire::Writer& out, uint64_t request) { return put(out, request); };
    if (program.calls_back) return Conversation(stream, answer_callback()).hold(stream.generation(), put_asking);
    return stream.record(stream.generation(), [this](wire::Writer& out) { return put(out, std::nullopt); });
  }

  // What it makes, once it is recorded.
  std::vector<c10::Storage> outputs() const {
    std::vector<c10::Storage> made;
    for (size_t index = 0; index < output_bytes.size(); ++index) made.push_back(adopt_storage(stream.device(), first_output + index, output_bytes[index]));
    return made;
  }

 private:
  bool put(wire::Writer& out, std::optional<uint64_t> request) {
    if (!Recorder::of(stream.device()).programs().contains(program.number)) return false;
    out.command(request ? Command::kExecuteCalling : Command::kExecute);
    if (request) out.varint(*request);
    out.varint(program.number);
    out.varint(inputs.size());
    for (const uint64_t input : inputs) out.varint(input);
    out.varint(output_bytes.size());
    for (size_t index = 0; index < output_bytes.size(); ++index) out.varint(first_output + index);
    return recorded = true;
  }
};

}  // namespace

void answer_callbacks_by(AnswerCallback answer) { answer_callback() = std::move(answer); }

void compile_program(CommandStream& stream, const WholeProgram& program, const std::function<void(const wire::ProgramSignature&)>& take) {
  TORCH_CHECK_NOT_IMPLEMENTED(program.module.size() <= wire::kProgramBytesMax, "the program has ", program.module.size(), " bytes, and at most ", wire::kProgramBytesMax,
                              " go to a worker; give it large constants as arguments");
  stream.lease().need();
  stream.check_stopped();
  auto& programs = Recorder::of(stream.device()).programs();
  const uint64_t generation = stream.generation();
  std::optional<ToldFailure> failure;
  wire::Writer definition;
  uint64_t asked = 0;
  stream.ask_aside(
      [&](wire::Writer& out, uint64_t request) {
        if (programs.contains(program.number)) return false;
        definition.command(Command::kProgram);
        definition.varint(asked = request);
        definition.varint(program.number);
        definition.raw(program.placement.data(), program.placement.size());
        definition.varint(program.module.size());
        definition.raw(program.module.data(), program.module.size());
        out.raw(definition.bytes().data(), definition.size());
        return true;
      },
      [&](Reply reply, wire::Reader& body) {
        if (reply == Reply::kFailure) {
          failure = told_failure(body, generation);
          return;
        }
        take(wire::get_signature(body));
        const std::lock_guard lock(stream.commands().mutex());
        if (generation != stream.generation()) return;
        programs.insert(program.number);
        stream.commands().definitions().add_awaited(asked, definition);
      },
      AskedCommand::Kind::kDefinition);
  if (failure) refuse_program(*failure);
}

std::vector<c10::Storage> execute_program(CommandStream& stream, const WholeProgram& program, const std::vector<c10::Storage>& inputs, const std::vector<int64_t>& output_bytes) {
  std::vector<uint64_t> ids;
  for (const auto& input : inputs) ids.push_back(handle_of(input).id);
  check_room(stream.device(), std::accumulate(output_bytes.begin(), output_bytes.end(), int64_t{0}));
  Execution execution{stream, program, ids, stream.new_storages(output_bytes.size()), output_bytes};
  try {
    while (!execution.record()) {
      compile_program(stream, program, [](const wire::ProgramSignature&) {});
      for (const auto& input : inputs) handle_of(input);  // throws if they were lost meanwhile
    }
  } catch (...) {
    if (execution.recorded) execution.outputs();  // frees them
    throw;
  }
  return execution.outputs();
}

}  // namespace forebay
