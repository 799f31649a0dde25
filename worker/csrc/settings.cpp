#include "settings.h"

#include <ATen/Context.h>
#include <forebay/wire.h>

namespace forebay::worker {

void apply_settings(uint64_t bits) {
  auto& context = at::globalContext();
  const auto precision = [&](wire::Settings tf32) { return bits & tf32 ? at::Float32Precision::TF32 : at::Float32Precision::IEEE; };
  context.setAllowTF32CuBLAS(bits & wire::kTf32Products);
  // The older setting first: kernels that ask for it refuse to run where it contradicts what it stands for.
  context.setAllowTF32CuDNN((bits & wire::kTf32Convolutions) && (bits & wire::kTf32Recurrent));
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV, precision(wire::kTf32Convolutions));
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN, precision(wire::kTf32Recurrent));
  context.setAllowFP16ReductionCuBLAS(bits & wire::kFp16Reduction);
  context.setAllowBF16ReductionCuBLAS(bits & wire::kBf16Reduction);
  context.setAllowFP16AccumulationCuBLAS(bits & wire::kFp16Accumulation);
  context.setUserEnabledCuDNN(bits & wire::kCudnn);
  context.setBenchmarkCuDNN(bits & wire::kCudnnBenchmark);
  context.setDeterministicCuDNN(bits & wire::kCudnnDeterministic);
  context.setDeterministicAlgorithms(bits & wire::kDeterministic, bits & wire::kDeterministicWarns);
}

}  // namespace forebay::worker
