// The kernels that a session's program brings: defined, compiled by a process of their own, and launched.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/wire.h>

#include "base/replies.h"
#include "call/call.h"
#include "call/effects.h"
#include "call/kernel.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "parallel/gang_caller.h"
#include "tier2/segment_tracker.h"

namespace forebay::worker {

class SessionKernels {
 public:
  SessionKernels(const Device& device, Storages& storages, const GangCaller& gang, Caller& caller, Effects& effects, Timing& timing, SegmentTracker& segments, Replies& replies)
      : device_(device), storages_(storages), gang_(gang), caller_(caller), effects_(effects), timing_(timing), segments_(segments), replies_(replies) {}

  // Of a session that has done nothing yet.
  void accept_by(KernelHost host) { host_ = std::move(host); }
  // Why this session may launch no kernel of its own; empty: it may.
  const std::string& refusal() const;

  // Commands. They throw wire::WireError for what is not the protocol.
  void define(wire::Reader& in);
  void launch(wire::Reader& in);

  // Numbering begins again.
  void forget() { kernels_.clear(); }

  // The kernel of this number is compiled and loaded, or cannot be. Its client is told.
  void take(uint64_t number, const std::string& name, std::vector<KernelParameter> parameters);
  void refuse(uint64_t number, wire::FailureCode code, const std::string& why);

 private:
  void launch(uint64_t number, const Kernel& kernel, const Grid& grid, const std::vector<KernelArgument>& arguments);

  const Device& device_;
  Storages& storages_;
  const GangCaller& gang_;
  Caller& caller_;
  Effects& effects_;
  Timing& timing_;
  SegmentTracker& segments_;
  Replies& replies_;
  KernelHost host_;
  std::unordered_map<uint64_t, Kernel> kernels_;
};

}  // namespace forebay::worker
