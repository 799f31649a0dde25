#include "session/session_programs.h"

#include <algorithm>
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

// Of what a program takes, or makes, on all its devices.
size_t count_of(const wire::ProgramSignature& signature, const std::vector<wire::ProgramArray>& arrays) { return signature.devices * arrays.size(); }

// What a program needs beside its inputs on all its devices; wire::kStorageBytesMax if that is more.
int64_t needed_bytes(const wire::ProgramSignature& signature) {
  auto left = static_cast<uint64_t>(wire::kStorageBytesMax) / signature.devices;
  const auto take = [&left](uint64_t bytes) { left -= std::min(left, bytes); };
  const uint64_t all = left;
  take(signature.temporary_bytes);
  for (const auto& output : signature.outputs) take(static_cast<uint64_t>(*output.bytes()));
  return left == 0 ? wire::kStorageBytesMax : static_cast<int64_t>((all - left) * signature.devices);
}

}  // namespace

void SessionPrograms::define(wire::Reader& in) {
  const uint64_t request = in.varint(), number = in.varint();
  const auto placement = wire::get_placement(in);
  const size_t bytes = in.count(wire::kProgramBytesMax, "the size of a program");
  const std::string module(reinterpret_cast<const char*>(in.raw(bytes)), bytes);
  if (executables_.count(number) != 0) throw wire::WireError("program " + std::to_string(number) + " is defined already");
  if (executables_.size() >= wire::kProgramsMax) throw wire::WireError("more than " + std::to_string(wire::kProgramsMax) + " programs");
  const auto refuse = [&](wire::FailureCode code, const std::string& why) {
    effects_.report(request, {0, code, effects_.next_call(), kXla, told_text(why, wire::kMessageBytesMax), ""});
  };
  if (!host_.refused.empty()) return refuse(wire::FailureCode::kUnsupported, host_.refused);
  try {
    const Running::Call running(caller_.running(), kWholeProgram);
    auto executable = host_.compile(module, placement, *callbacks_);
    check_size(executable->signature());
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

void SessionPrograms::check_size(const wire::ProgramSignature& signature) {
  const size_t arrays = std::max(count_of(signature, signature.inputs), count_of(signature, signature.outputs));
  if (arrays > wire::kProgramArraysMax) {
    throw CommandError(wire::FailureCode::kUnsupported, "a program of " + std::to_string(arrays) + " arrays on " + std::to_string(signature.devices) +
                                                            " devices is not served on the virtual device; at most " + std::to_string(wire::kProgramArraysMax));
  }
  if (signature.compiled.size() > wire::kProgramBytesMax) {
    throw CommandError(wire::FailureCode::kUnsupported, "the compiled program has " + std::to_string(signature.compiled.size()) + " bytes, and at most " +
                                                            std::to_string(wire::kProgramBytesMax) + " go to a client");
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
  const size_t inputs = count_of(signature, signature.inputs), outputs = count_of(signature, signature.outputs);
  get_program_storages(in, inputs, words, [this](uint64_t id) { storages_.at(id); });
  get_program_storages(in, outputs, words, [this](uint64_t id) { storages_.check_new(id); });
  std::vector<wire::Word> kinds(inputs, wire::Word::kStorage);
  kinds.insert(kinds.end(), outputs, wire::Word::kNew);
  const uint64_t sequence = effects_.begin_call();
  effects_.commit({sequence, kinds, words, carry_out(*found->second, words, sequence)});
}

Cause SessionPrograms::carry_out(Executable& executable, const wire::Words& words, uint64_t sequence) {
  gang_.settle();
  if (effects_.stopped()) return effects_.stopped();
  Cause before = effects_.lost();
  const size_t inputs = count_of(executable.signature(), executable.signature().inputs);
  for (size_t index = 0; index < inputs && !before; ++index) before = storages_.at(words[index]).cause();
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
  storages_.check_room(needed_bytes(signature));
  const auto first_output = words.begin() + static_cast<std::ptrdiff_t>(count_of(signature, signature.inputs));
  auto made = executable.run(memory_of(signature, {words.begin(), first_output}), /*is_counted=*/!gang_.is_on());
  for (size_t index = 0; index < made.size(); ++index) {
    const uint64_t id = first_output[static_cast<std::ptrdiff_t>(index)];
    Entry& entry = storages_.insert(id, *signature.outputs[index % signature.outputs.size()].bytes());
    if (gang_.is_on()) gang_.gang().homes().keep_on_host(id, std::move(made[index]), /*period=*/0);
    else entry.replace(std::move(made[index]));
  }
}

std::vector<c10::Storage> SessionPrograms::memory_of(const wire::ProgramSignature& signature, const wire::Words& inputs) {
  std::vector<c10::Storage> memory;
  for (size_t index = 0; index < inputs.size(); ++index) {
    Entry& entry = storages_.at(inputs[index]);
    entry.check_range(0, static_cast<size_t>(*signature.inputs[index % signature.inputs.size()].bytes()), "a program's input");
    if (gang_.is_on()) bring(inputs[index]);
    memory.push_back(entry.home() == kOnHost ? entry.on_host()->memory() : entry.read(device_));
  }
  return memory;
}

void SessionPrograms::bring(uint64_t id) {
  gang_.make_whole({id}, /*only_read=*/true);
  const Entry& entry = storages_.at(id);
  const bool is_here = entry.holds_anything() && (entry.home() == 0 || entry.home() == kOnHost);
  if (!is_here) gang_.gang().homes().bring(id, kOnHost);
}

}  // namespace forebay::worker
