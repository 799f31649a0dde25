#include "python.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

namespace forebay {
namespace {

[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

void check_signals() {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw_python_error();
}

void call_python(const std::function<void()>& function) {
  const pybind11::gil_scoped_acquire gil;
  try {
    function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

}  // namespace forebay
