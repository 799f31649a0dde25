// How this process's device computes: PyTorch's settings, as a program has set them.
#pragma once

#include <cstdint>

namespace forebay::worker {

// `bits` of wire::Settings.
void apply_settings(uint64_t bits);

// How many threads the host's kernels take from here on. A change makes PyTorch end threads and start others, and forget kernels that it has prepared.
void set_kernel_threads(int threads);

// As long as it lives the host's kernels that the calling thread begins take one thread. Unlike set_kernel_threads it costs next to nothing: the
// others stay, and what was prepared.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;      // of OpenMP before
  int mkl_threads_;  // of MKL, which keeps a number of its own; 0: it had none
};

}  // namespace forebay::worker
