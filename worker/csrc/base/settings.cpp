#include "base/settings.h"

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/env.h>
#include <forebay/wire.h>

namespace forebay::worker {

namespace {

// Of a library that PyTorch brings, or null: its build may have none.
template <typename Function>
Function* function_of(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

void set_openmp_threads(int threads) {
  static auto* const set = function_of<void(int)>("omp_set_num_threads");
  if (set != nullptr) set(threads);
}

int exchange_mkl_threads(int threads) {
  static auto* const set = function_of<int(int)>("MKL_Set_Num_Threads_Local");
  return set == nullptr ? 0 : set(threads);
}

}  // namespace

void apply_settings(uint64_t bits) {
  auto& context = at::globalContext();
  const auto precision = [&](wire::Settings tf32) { return bits & tf32 ? at::Float32Precision::TF32 : at::Float32Precision::IEEE; };
  context.setAllowTF32CuBLAS(bits & wire::kTf32Products);
  // The older setting first: kernels that ask for it refuse to run where it contradicts what it stands for.
  context.setAllowTF32CuDNN((bits & wire::kTf32Convolutions) && (bits & wire::kTf32Recurrent));
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV, precision(wire::kTf32Convolutions));
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN, precision(wire::kTf32Recurrent));
  const auto splits = [&](wire::Settings reduction, wire::Settings whole) { return (bits & reduction) || !(bits & whole); };  // PyTorch takes no other pair
  context.setAllowFP16ReductionCuBLAS(bits & wire::kFp16Reduction, splits(wire::kFp16Reduction, wire::kFp16Whole));
  context.setAllowBF16ReductionCuBLAS(bits & wire::kBf16Reduction, splits(wire::kBf16Reduction, wire::kBf16Whole));
  context.setAllowFP16AccumulationCuBLAS(bits & wire::kFp16Accumulation);
  context.setUserEnabledCuDNN(bits & wire::kCudnn);
  context.setBenchmarkCuDNN(bits & wire::kCudnnBenchmark);
  context.setDeterministicCuDNN(bits & wire::kCudnnDeterministic);
  // PyTorch asks that a program sets it; ours is another process, and it changes nothing else. An operator's own choice stands.
  if (bits & wire::kDeterministic) c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/false);
  context.setDeterministicAlgorithms(bits & wire::kDeterministic, bits & wire::kDeterministicWarns);
}

void set_kernel_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

OneThread::OneThread() : threads_(at::get_num_threads()), mkl_threads_(exchange_mkl_threads(1)) { set_openmp_threads(1); }

OneThread::~OneThread() {
  set_openmp_threads(threads_);
  exchange_mkl_threads(mkl_threads_);
}

}  // namespace forebay::worker
