// The threads on which autograd computes the gradients of each device's tensors.
#pragma once

#include <chrono>

namespace forebay {

// To be called by a thread that computes gradients: there is something to wait for.
void note_backward();
// Whether one has, in this process or one that it was forked from.
bool has_run_backward();
// In a forked child, which has none of these threads: PyTorch starts them once, so they are started for the engine that it makes anew there.
void restart_backwards();
// Around a fork, on the thread that forks: nobody is within a queue of theirs, which PyTorch visits in the child when it ends the engine
// that was copied.
void hold_backward_queues();
void let_go_of_backward_queues();

// Waits until autograd's threads have let go of every backward pass that has returned; false where `most` passed before. A thread that
// still holds one when Python ends wants the GIL to release the pass's Python objects, and Python ends it by unwinding it through
// PyTorch's destructors, which terminates the process (pthread_exit in take_gil(), Python/ceval_gil.h, up to 3.13). Called without the GIL.
bool settle_backwards(std::chrono::milliseconds most);

}  // namespace forebay
