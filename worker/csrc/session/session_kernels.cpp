#include "session/session_kernels.h"

#include <cstddef>

namespace forebay::worker {

namespace {

constexpr uintptr_t kAlignment = 16;  // of each storage, which clients count on where Triton compiles for it
constexpr uint64_t kGridMax = (uint64_t{1} << 31) - 1;
const std::string kLaunching = "a kernel of the program";
const std::string kOfPrograms = "triton";  // in place of an operator, in failures

}  // namespace

const std::string& SessionKernels::refusal() const {
  static const std::string several = "a session of several devices takes none; choose a flavor of one device";
  if (!host_.refused.empty()) return host_.refused;
  static const std::string none;
  return gang_.is_on() ? several : storages_.limit_bytes() < host_.bytes_min ? host_.too_little : none;
}

void SessionKernels::define(wire::Reader& in) {
  const uint64_t request = in.varint(), number = in.varint();
  const uint8_t* described = in.position();
  in.string();
  for (int left = 4; left > 0; --left) in.varint();  // checked by forebay_wire/kernels.py
  in.u8();
  in.raw(in.count(wire::kKernelBytesMax, "the size of a kernel"));
  if (kernels_.count(number) != 0) throw wire::WireError("kernel " + std::to_string(number) + " is defined already");
  if (kernels_.size() >= wire::kKernelsMax) throw wire::WireError("more than " + std::to_string(wire::kKernelsMax) + " kernels");
  if (!refusal().empty()) return effects_.report(request, {0, wire::FailureCode::kUnsupported, effects_.next_call(), kOfPrograms, refusal(), ""});
  kernels_[number].request = request;
  segments_.offer(KernelDefined{number, {reinterpret_cast<const char*>(described), static_cast<size_t>(in.position() - described)}});
}

void SessionKernels::take(uint64_t number, const std::string& name, std::vector<KernelParameter> parameters) {
  const auto found = kernels_.find(number);
  if (found == kernels_.end()) return;
  Kernel& kernel = found->second;
  kernel.is_ready = true;
  kernel.name = "triton::" + name;
  kernel.parameters = std::move(parameters);
  replies_.done(kernel.request);
}

void SessionKernels::refuse(uint64_t number, wire::FailureCode code, const std::string& why) {
  const auto found = kernels_.find(number);
  if (found == kernels_.end()) return;
  const uint64_t request = found->second.request;
  kernels_.erase(found);
  effects_.report(request, {0, code, effects_.next_call(), kOfPrograms, told_text(why, wire::kMessageBytesMax), ""});
}

// What it writes to nobody knows, so each tensor may be another afterwards.
void SessionKernels::launch(wire::Reader& in) {
  const uint64_t number = in.varint();
  const auto found = kernels_.find(number);
  if (found == kernels_.end() || !found->second.is_ready) throw wire::WireError("kernel " + std::to_string(number) + " is not defined");
  const Kernel& kernel = found->second;
  Grid grid{};
  for (auto& size : grid) size = in.bounded(kGridMax, "the size of a grid");
  const auto arguments = get_kernel_arguments(in);
  const uint64_t sequence = effects_.begin_call();
  Cause before = effects_.lost();
  for (const auto& argument : arguments) {
    if (argument.storage) before = before ? before : storages_.at(*argument.storage).cause();
  }
  if (effects_.stopped()) return;
  if (before) {
    effects_.announced(effects_.stop_after(*before));
    return;
  }
  try {
    const TimedCall timed(timing_, sequence);
    if (!refusal().empty()) throw CommandError(wire::FailureCode::kUnsupported, refusal());
    launch(number, kernel, grid, arguments);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    effects_.announced(effects_.stop_now(kernel.name, sequence));
  }
}

void SessionKernels::launch(uint64_t number, const Kernel& kernel, const Grid& grid, const std::vector<KernelArgument>& arguments) {
  std::vector<uint64_t> values;
  for (const auto& argument : arguments) {
    values.push_back(argument.bits);
    if (!argument.storage) continue;
    Entry& entry = storages_.at(*argument.storage);
    entry.check_range(argument.bits, 0, "a kernel's argument");
    const auto begin = reinterpret_cast<uintptr_t>(entry.touch(device_).mutable_data());
    if (begin % kAlignment != 0) throw CommandError(wire::FailureCode::kValue, "a tensor's memory does not begin at a multiple of 16 bytes");
    values.back() += begin;
  }
  const std::string parameters = packed(kernel, arguments, values);
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  const Running::Call running(caller_.running(), kLaunching);
  try {
    host_.launch(number, grid, parameters);
  } catch (const std::exception&) {
    device_.synchronize();  // one that has failed before says so itself
    throw;
  }
}

}  // namespace forebay::worker
