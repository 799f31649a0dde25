// A session's kernels of its own: defined, compiled by a process of their own, and launched.
#include <utility>

#include "base/clock.h"
#include "session/session.h"

namespace forebay::worker {

namespace {

constexpr uintptr_t kAlignment = 16;  // of each storage, which clients count on where Triton compiles for it
constexpr uint64_t kGridMax = (uint64_t{1} << 31) - 1;
const std::string kLaunching = "a kernel of the program";
const std::string kOfPrograms = "triton";  // where an operator would be told

}  // namespace

void Session::take_kernels(KernelHost host) { kernel_host_ = std::move(host); }

// Why this session may launch no kernel of its own; empty: it may.
const std::string& Session::no_kernels() const {
  static const std::string several = "a session of several devices takes none; choose a flavor of one device";
  if (!kernel_host_.refused.empty()) return kernel_host_.refused;
  static const std::string none;
  return gang_ ? several : storages_.limit_bytes() < kernel_host_.bytes_min ? kernel_host_.too_little : none;
}

void Session::define_kernel(wire::Reader& in) {
  const uint64_t request = in.varint(), number = in.varint();
  const uint8_t* described = in.position();
  in.string();
  for (int left = 4; left > 0; --left) in.varint();  // checked by forebay_wire/kernels.py
  in.u8();
  in.raw(in.count(wire::kKernelBytesMax, "the size of a kernel"));
  if (kernels_.count(number) != 0) throw wire::WireError("kernel " + std::to_string(number) + " is defined already");
  if (kernels_.size() >= wire::kKernelsMax) throw wire::WireError("more than " + std::to_string(wire::kKernelsMax) + " kernels");
  if (!no_kernels().empty()) return tell(request, {0, wire::FailureCode::kUnsupported, sequence_, kOfPrograms, no_kernels(), ""});
  kernels_[number].request = request;
  offers_.push_back({Offer::Kind::kKernel, number, {reinterpret_cast<const char*>(described), static_cast<size_t>(in.position() - described)}});
}

void Session::take_kernel(uint64_t number, const std::string& name, std::vector<KernelParameter> parameters) {
  const auto found = kernels_.find(number);
  if (found == kernels_.end()) return;
  Kernel& kernel = found->second;
  kernel.is_ready = true;
  kernel.name = "triton::" + name;
  kernel.parameters = std::move(parameters);
  done(kernel.request);
}

void Session::refuse_kernel(uint64_t number, wire::FailureCode code, const std::string& why) {
  const auto found = kernels_.find(number);
  if (found == kernels_.end()) return;
  const uint64_t request = found->second.request;
  kernels_.erase(found);
  tell(request, {0, code, sequence_, kOfPrograms, told_text(why, wire::kMessageBytesMax), ""});
}

// What it writes to nobody knows, so each tensor may be another afterwards.
void Session::launch(wire::Reader& in) {
  end_segment();
  const uint64_t number = in.varint();
  const auto found = kernels_.find(number);
  if (found == kernels_.end() || !found->second.is_ready) throw wire::WireError("kernel " + std::to_string(number) + " is not defined");
  const Kernel& kernel = found->second;
  Grid grid{};
  for (auto& size : grid) size = in.bounded(kGridMax, "the size of a grid");
  const auto arguments = get_kernel_arguments(in);
  const uint64_t sequence = sequence_++;
  Cause before = lost_;
  for (const auto& argument : arguments) {
    if (argument.storage) before = before ? before : storages_.at(*argument.storage).cause();
  }
  if (stopped_) return;
  if (before) {
    announced(stop_after(*before));
    return;
  }
  try {
    const TimedCall timed(timing_, sequence);
    if (!no_kernels().empty()) throw CommandError(wire::FailureCode::kUnsupported, no_kernels());
    launch(number, kernel, grid, arguments);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    announced(stop_now(kernel.name, sequence));
  }
}

void Session::launch(uint64_t number, const Kernel& kernel, const Grid& grid, const std::vector<KernelArgument>& arguments) {
  std::vector<uint64_t> values;
  for (const auto& argument : arguments) {
    values.push_back(argument.bits);
    if (!argument.storage) continue;
    Entry& entry = storages_.at(*argument.storage);
    check_range(entry, argument.bits, 0, "a kernel's argument");
    const auto begin = reinterpret_cast<uintptr_t>(entry.touch(device_).mutable_data());
    if (begin % kAlignment != 0) throw CommandError(wire::FailureCode::kValue, "a tensor's memory does not begin at a multiple of 16 bytes");
    values.back() += begin;
  }
  const std::string parameters = packed(kernel, arguments, values);
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  const Running::Call running(caller_.running(), kLaunching);
  try {
    kernel_host_.launch(number, grid, parameters);
  } catch (const std::exception&) {
    device_.synchronize();  // one that has failed before says so itself
    throw;
  }
}

}  // namespace forebay::worker
