#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "front.h"

namespace forebay::tf {
namespace {

// The interpreter's lock, whether the thread has it or not.
class Lock {
 public:
  Lock() : state_(PyGILState_Ensure()) {}
  ~Lock() { PyGILState_Release(state_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  PyGILState_STATE state_;
};

absl::Status raised() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* text = value == nullptr ? nullptr : PyObject_Str(value);
  const char* letters = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  const std::string message = letters == nullptr ? "forebay_tensorflow failed" : letters;
  for (auto* object : {type, value, trace, text}) Py_XDECREF(object);
  PyErr_Clear();
  return absl::FailedPreconditionError(message);
}

}  // namespace

absl::StatusOr<Front> ask_front() {
  const Lock lock;
  PyObject* module = PyImport_ImportModule("forebay_tensorflow");
  PyObject* told = module == nullptr ? nullptr : PyObject_CallMethod(module, "front", nullptr);
  Py_XDECREF(module);
  Front front;
  long long table = 0;
  const char* plugin = nullptr;
  if (told == nullptr || !PyArg_ParseTuple(told, "iLs", &front.devices, &table, &plugin)) {
    Py_XDECREF(told);
    return raised();
  }
  front.table = table;
  front.plugin = plugin;
  Py_DECREF(told);
  return front;
}

}  // namespace forebay::tf
