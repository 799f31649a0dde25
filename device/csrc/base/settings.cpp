#include "base/settings.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <string_view>

#include "forebay/wire.h"

namespace forebay {

namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

bool wants_libraries() { return asks_for_libraries() && !at::globalContext().deterministicAlgorithms(); }

// Of workers, not of PyTorch.
uint64_t wishes() { return (wants_libraries() ? wire::kCompiled : 0) | (asks_for_recomputation() ? wire::kRecomputed : 0); }

}  // namespace

bool asks_for_libraries() {
  static const bool asks = is_set("FOREBAY_COMPILE");
  return asks;
}

bool asks_for_recomputation() {
  static const bool asks = is_set("FOREBAY_RECOMPUTE");
  return asks;
}

bool waits_for_each_call() {
  static const bool waits = is_set("FOREBAY_LAUNCH_BLOCKING");
  return waits;
}

uint64_t host_settings() { return wire::kSettingsDefault | wishes(); }

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
