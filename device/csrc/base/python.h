// Where the recorder meets the interpreter: signals, and waiting without the GIL.
#pragma once

#include <Python.h>

#include <functional>

namespace forebay {

// Waits for the GIL; for ever where the interpreter has ended meanwhile.
void take_gil(PyThreadState* state);

// Keeps a daemon thread for good once the interpreter has ended: PyTorch's frames above do not survive asking it for the GIL.
void stay_if_ended();

// Gives the GIL up for as long as it lives, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) take_gil(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Runs Python's signal handlers, if this is the thread for it; throws what they raise (KeyboardInterrupt).
void check_signals();

// Whether this thread runs a signal handler inside such a call: what its caller has locked is not to be had.
bool in_signal_handler();

// While it lives this thread runs a function that a program on the device calls, which waits for it: what its caller has locked is not to be had.
class InCallback {
 public:
  InCallback();
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
};
bool in_callback();

// Calls `function` with the GIL; throws what it raises.
void call_python(const std::function<void()>& function);

}  // namespace forebay
