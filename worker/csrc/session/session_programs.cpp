#include "session/session_programs.h"

#include <cstddef>
#include <functional>

namespace forebay::worker {

namespace {

const std::string kXla = "xla";  // in place of an operator, in failures
const std::string kWholeProgram = "a program of JAX";

// Storages that an EXECUTE names, each of which must exist, or must not.
void get_program_storages(wire::Reader& in, size_t count, wire::Words& words, const std::function<void(uint64_t)>& check) {
  if (in.count(wire::kProgramArraysMax, "the number of a program's arrays") != count) throw wire::WireError("a program of " + std::to_string(count) + " arrays is given others");
  for (size_t index = 0; index < count; ++index) {
    words.push_back(in.varint());
    check(words.back());
  }
}

}  // namespace

const std::string& SessionPrograms::refusal() const {
  static const std::string several = "a session of several devices takes no programs of JAX; choose a flavor of one device";
  return gang_.is_on() ? several : host_.refused;
}

void SessionPrograms::define(wire::Reader& in) {
  const uint64_t request = in.varint(), number = in.varint();
  const size_t bytes = in.count(wire::kProgramBytesMax, "the size of a program");
  const std::string module(reinterpret_cast<const char*>(in.raw(bytes)), bytes);
  if (executables_.count(number) != 0) throw wire::WireError("program " + std::to_string(number) + " is defined already");
  if (executables_.size() >= wire::kProgramsMax) throw wire::WireError("more than " + std::to_string(wire::kProgramsMax) + " programs");
  const auto refuse = [&](wire::FailureCode code, const std::string& why) {
    effects_.report(request, {0, code, effects_.next_call(), kXla, told_text(why, wire::kMessageBytesMax), ""});
  };
  if (!refusal().empty()) return refuse(wire::FailureCode::kUnsupported, refusal());
  try {
    const Running::Call running(caller_.running(), kWholeProgram);
    auto executable = host_.compile(module, *callbacks_);
    wire::Writer told;
    told.reply(wire::Reply::kCompiled);
    told.varint(request);
    wire::put_signature(told, executable->signature());
    executables_.emplace(number, std::move(executable));
    replies_.send(told, nullptr, 0);
  } catch (const CommandError& error) {
    refuse(error.code, error.what());
  }
}

void SessionPrograms::execute(wire::Reader& in) { execute(in, false); }

void SessionPrograms::execute_calling(wire::Reader& in, uint64_t request) {
  callbacks_->begin(request);
  execute(in, true);
  callbacks_->end();
}

void SessionPrograms::execute(wire::Reader& in, bool calling) {
  const uint64_t number = in.varint();
  const auto found = executables_.find(number);
  if (found == executables_.end()) throw wire::WireError("program " + std::to_string(number) + " is not defined");
  const auto& signature = found->second->signature();
  if (signature.calls_back != calling) throw wire::WireError("program " + std::to_string(number) + " is executed as one that " + (calling ? "calls" : "never calls") + " back");
  wire::Words words;
  get_program_storages(in, signature.inputs.size(), words, [this](uint64_t id) { storages_.at(id); });
  get_program_storages(in, signature.outputs.size(), words, [this](uint64_t id) { storages_.check_new(id); });
  std::vector<wire::Word> kinds(signature.inputs.size(), wire::Word::kStorage);
  kinds.insert(kinds.end(), signature.outputs.size(), wire::Word::kNew);
  const uint64_t sequence = effects_.begin_call();
  effects_.commit({sequence, kinds, words, carry_out(*found->second, words, sequence)});
}

Cause SessionPrograms::carry_out(Executable& executable, const wire::Words& words, uint64_t sequence) {
  if (effects_.stopped()) return effects_.stopped();
  Cause before = effects_.lost();
  for (size_t index = 0; index < executable.signature().inputs.size() && !before; ++index) before = storages_.at(words[index]).cause();
  if (before) return effects_.announced(effects_.stop_after(*before));
  const std::string name = kXla + "::" + executable.signature().name;
  try {
    const TimedCall timed(timing_, sequence);
    const Running::Call running(caller_.running(), kWholeProgram);
    run(executable, words);
    return nullptr;
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    return effects_.announced(effects_.stop_now(name, sequence));
  }
}

// Nothing is inserted before all is made.
void SessionPrograms::run(Executable& executable, const wire::Words& words) {
  const auto& signature = executable.signature();
  auto bytes = static_cast<int64_t>(signature.temporary_bytes);
  for (const auto& output : signature.outputs) bytes += *output.bytes();
  storages_.check_room(bytes);
  auto made = executable.run(memory_of(signature, words));
  for (size_t index = 0; index < signature.outputs.size(); ++index) {
    storages_.insert(words[signature.inputs.size() + index], *signature.outputs[index].bytes()).replace(std::move(made[index]));
  }
}

std::vector<c10::Storage> SessionPrograms::memory_of(const wire::ProgramSignature& signature, const wire::Words& words) {
  std::vector<c10::Storage> memory;
  for (size_t index = 0; index < signature.inputs.size(); ++index) {
    Entry& entry = storages_.at(words[index]);
    entry.check_range(0, static_cast<size_t>(*signature.inputs[index].bytes()), "a program's input");
    memory.push_back(entry.read(device_));
  }
  return memory;
}

}  // namespace forebay::worker
