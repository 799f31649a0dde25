#include "base/settings.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <string_view>

#include "forebay/wire.h"

namespace forebay {

namespace {

constexpr const char* kCompile = "FOREBAY_COMPILE";

bool is(const char* name, std::string_view value) {
  const char* given = std::getenv(name);
  return given != nullptr && given == value;
}

// Of workers, not of PyTorch.
uint64_t wishes() {
  const bool at_once = compiles_at_once() && !at::globalContext().deterministicAlgorithms();
  return (at_once ? wire::kCompiled : 0) | (asks_for_recomputation() ? wire::kRecomputed : 0);
}

}  // namespace

bool uses_libraries() {
  static const bool uses = !is(kCompile, "0");
  return uses;
}

bool compiles_at_once() {
  static const bool compiles = is(kCompile, "1");
  return compiles;
}

bool asks_for_recomputation() {
  static const bool asks = is("FOREBAY_RECOMPUTE", "1");
  return asks;
}

bool waits_for_each_call() {
  static const bool waits = is("FOREBAY_LAUNCH_BLOCKING", "1");
  return waits;
}

uint64_t host_settings() {
  const bool wants_none = !uses_libraries() || at::globalContext().deterministicAlgorithms();
  return wire::kSettingsDefault | wishes() | (wants_none ? wire::kDeterministic : 0);
}

uint64_t program_settings() {
  const auto& context = at::globalContext();
  const auto is_tf32 = [&](at::Float32Op op) { return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32; };
  constexpr auto kReduces = at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
  constexpr auto kWhole = at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK;
  uint64_t bits = wishes();
  const auto note = [&](bool set, wire::Settings bit) { bits |= set ? bit : 0; };
  note(is_tf32(at::Float32Op::MATMUL), wire::kTf32Products);
  note(is_tf32(at::Float32Op::CONV), wire::kTf32Convolutions);
  note(is_tf32(at::Float32Op::RNN), wire::kTf32Recurrent);
  note(context.allowFP16ReductionCuBLAS() == kReduces, wire::kFp16Reduction);
  note(context.allowBF16ReductionCuBLAS() == kReduces, wire::kBf16Reduction);
  note(context.allowFP16AccumulationCuBLAS(), wire::kFp16Accumulation);
  note(context.userEnabledCuDNN(), wire::kCudnn);
  note(context.benchmarkCuDNN(), wire::kCudnnBenchmark);
  note(context.deterministicCuDNN(), wire::kCudnnDeterministic);
  note(context.deterministicAlgorithms(), wire::kDeterministic);
  note(context.deterministicAlgorithmsWarnOnly(), wire::kDeterministicWarns);
  note(context.allowFP16ReductionCuBLAS() == kWhole, wire::kFp16Whole);
  note(context.allowBF16ReductionCuBLAS() == kWhole, wire::kBf16Whole);
  return bits;
}

}  // namespace forebay
