// The whole programs of a session: compiled once, and carried out on its storages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/wire.h>

#include "base/replies.h"
#include "call/call.h"
#include "call/effects.h"
#include "call/program.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "parallel/gang_caller.h"

namespace forebay::worker {

class SessionPrograms {
 public:
  SessionPrograms(const Device& device, Storages& storages, GangCaller& gang, Caller& caller, Effects& effects, Timing& timing, Replies& replies)
      : device_(device), storages_(storages), gang_(gang), caller_(caller), effects_(effects), timing_(timing), replies_(replies) {}

  // Of a session that has done nothing yet.
  void accept_by(ProgramHost host) { host_ = std::move(host); }
  void call_back_by(CallbackHost& callbacks) { callbacks_ = &callbacks; }

  // Commands. They throw wire::WireError for what is not the protocol.
  void define(wire::Reader& in);
  void execute(wire::Reader& in);
  // Its callbacks are those of the request.
  void execute_calling(wire::Reader& in, uint64_t request);

  // Numbering begins again.
  void forget() { executables_.clear(); }

 private:
  // Throws CommandError where a client cannot be told of the program, or cannot execute it.
  static void check_size(const wire::ProgramSignature& signature);
  // `calling`: whether the program may call back; throws unless it is of that kind.
  void execute(wire::Reader& in, bool calling);
  // Returns why it makes nothing, or null.
  Cause carry_out(Executable& executable, const wire::Words& words, uint64_t sequence);
  void run(Executable& executable, const wire::Words& words);
  std::vector<c10::Storage> memory_of(const wire::ProgramSignature& signature, const wire::Words& inputs);
  // Of a session of several devices: an input is in this process's memory afterwards. All must be settled.
  void bring(uint64_t id);

  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
  Caller& caller_;
  Effects& effects_;
  Timing& timing_;
  Replies& replies_;
  ProgramHost host_;
  CallbackHost* callbacks_ = nullptr;
  std::unordered_map<uint64_t, std::unique_ptr<Executable>> executables_;
};

}  // namespace forebay::worker
