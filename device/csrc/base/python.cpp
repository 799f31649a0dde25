#include "base/python.h"

#include <frameobject.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <optional>

namespace forebay {
namespace {

thread_local bool handling_signals = false;
thread_local bool running_callback = false;

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

// Of an error that the called function itself raises, and does not pass on: its sentence says it all, and the frames that matter are those
// of the user's program.
void drop_own_frame() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr && reinterpret_cast<PyTracebackObject*>(trace)->tb_next == nullptr) {
    PyException_SetTraceback(value, Py_None);
    Py_CLEAR(trace);
  }
  PyErr_Restore(type, value, trace);
}

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

InCallback::InCallback() { running_callback = true; }
InCallback::~InCallback() { running_callback = false; }
bool in_callback() { return running_callback; }

void call_python(const std::function<void()>& function) {
  stay_if_ended();
  const WithGil gil;
  try {
    function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    drop_own_frame();
    throw_python_error();
  }
}

}  // namespace forebay
