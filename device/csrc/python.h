// Where the recorder meets the interpreter: signals, and waiting without the GIL.
#pragma once

#include <Python.h>

#include <functional>

namespace forebay {

// Gives the GIL up for as long as it lives, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Runs Python's signal handlers, if this is the thread for it; throws what they raise (KeyboardInterrupt).
void check_signals();

// Calls `function` with the GIL; throws what it raises.
void call_python(const std::function<void()>& function);

}  // namespace forebay
