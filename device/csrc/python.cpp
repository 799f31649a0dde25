#include "python.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <optional>

namespace forebay {
namespace {

thread_local bool handling_signals = false;

[[noreturn]] void stay() {
  for (;;) ::pause();
}

// The GIL, with the same care as take_gil().
class WithGil {
 public:
  WithGil() {
    try {
      gil_.emplace();
    } catch (...) {
      stay();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {  // the interpreter ends its daemon threads by unwinding them, which a destructor does not survive
    stay();
  }
}

void stay_if_ended() {
  if (!Py_IsInitialized() && ::gettid() != ::getpid()) stay();
}

void check_signals() {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return;
  const WithGil gil;
  handling_signals = true;
  const int status = PyErr_CheckSignals();
  handling_signals = false;
  if (status != 0) throw_python_error();
}

bool in_signal_handler() { return handling_signals; }

void call_python(const std::function<void()>& function) {
  stay_if_ended();
  const WithGil gil;
  try {
    function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

}  // namespace forebay
