// CPython keeps a thread's frames in a linked list that only that thread changes. While it waits in one of our kernels the list
// stands still, so it is read here without the GIL; a code object seen for the first time is kept alive (with the GIL) for good.
#include "base/locations.h"

#include <Python.h>
#if PY_VERSION_HEX < 0x030D0000
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <torch/csrc/autograd/graph_task.h>

#include "base/autograd_threads.h"
#include "base/devices.h"
#include "base/leaf_mutex.h"

namespace forebay {
namespace {

constexpr uint64_t kRingSize = 1 << 16;
constexpr int kDepthMax = 200;

struct Location {
  std::atomic<uint64_t> number{0};  // of the call, from 1
  std::atomic<PyCodeObject*> code{nullptr};
  std::atomic<int> instruction{0};
  std::atomic<ThreadTag> thread{0};
};

std::atomic<ThreadTag> threads{0};
thread_local const ThreadTag this_thread = ++threads;
std::atomic<ThreadTag> last_thread{0};

std::array<std::array<Location, kRingSize>, kDevicesMax> rings;  // all zero: pages that are not used take no memory

Location& location_for(c10::DeviceIndex device, uint64_t sequence) { return rings[static_cast<size_t>(device)][sequence % kRingSize]; }

std::atomic<PyCodeObject*> last_code{nullptr};
std::atomic<int> last_instruction{0};

std::string text_of(PyObject* text) {
  const char* letters = PyUnicode_AsUTF8(text);
  if (letters == nullptr) PyErr_Clear();
  return letters != nullptr ? letters : "?";
}

// As people know it, of which `forebay.spans` has the words: a notebook's cell is in a file that its author never sees.
std::string text_of(const Line& line) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string text = line.file + ", line " + std::to_string(line.number) + ", in " + line.function;
  PyObject* module = PyImport_ImportModule("forebay.spans");
  PyObject* place = module == nullptr ? nullptr : PyObject_CallMethod(module, "place", "sis", line.file.c_str(), line.number, line.function.c_str());
  if (place != nullptr) text = text_of(place);
  PyErr_Clear();
  Py_XDECREF(place);
  Py_XDECREF(module);
  PyGILState_Release(gil);
  return text;
}

bool is_library(PyCodeObject* code) {
  const char* name = PyUnicode_AsUTF8(code->co_filename);
  if (name == nullptr) {
    PyErr_Clear();
    return true;
  }
  const std::string_view path(name);
  const auto has = [&](std::string_view part) { return path.find(part) != std::string_view::npos; };
  return has("/site-packages/") || has("/dist-packages/") || has("/lib/python3") || has("/device/forebay/") || has("<frozen ") || path == "<shim>";
}

#if PY_VERSION_HEX < 0x030D0000

class CodeTable {
 public:
  // Whether the code object is the user's. Called without the GIL.
  bool is_user(PyCodeObject* code) {
    thread_local PyCodeObject* recent[64] = {};
    thread_local bool recent_user[64] = {};
    const size_t slot = (reinterpret_cast<uintptr_t>(code) >> 6) & 63;
    if (recent[slot] == code) return recent_user[slot];
    const bool user = look_up(code);
    recent[slot] = code;
    recent_user[slot] = user;
    return user;
  }

 private:
  bool look_up(PyCodeObject* code) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = user_.find(code);
      if (found != user_.end()) return found->second;
    }
    const PyGILState_STATE gil = PyGILState_Ensure();
    Py_INCREF(code);
    const bool user = !is_library(code);
    PyGILState_Release(gil);
    const std::lock_guard lock(mutex_);
    return user_.emplace(code, user).first->second;
  }

  LeafMutex mutex_;
  std::unordered_map<PyCodeObject*, bool> user_;
};

CodeTable& codes() {
  static auto* table = new CodeTable;
  return *table;
}

bool find_frame(PyCodeObject*& code, int& instruction) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || thread->cframe == nullptr) return false;
  const _PyInterpreterFrame* frame = thread->cframe->current_frame;
  for (int depth = 0; frame != nullptr && depth < kDepthMax; ++depth, frame = frame->previous) {
    if (frame->f_code == nullptr || !PyCode_Check(reinterpret_cast<PyObject*>(frame->f_code))) continue;
    if (!codes().is_user(frame->f_code)) continue;
    code = frame->f_code;
    instruction = static_cast<int>(frame->prev_instr - _PyCode_CODE(frame->f_code)) * static_cast<int>(sizeof(_Py_CODEUNIT));
    return true;
  }
  return false;
}

bool has_frames() {
  const PyThreadState* thread = PyGILState_GetThisThreadState();
  return thread != nullptr && thread->cframe != nullptr && thread->cframe->current_frame != nullptr;
}

#else

bool has_frames() {
  if (PyGILState_GetThisThreadState() == nullptr) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  const bool found = frame != nullptr;
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return found;
}

bool find_frame(PyCodeObject*& code, int& instruction) {
  if (PyGILState_GetThisThreadState() == nullptr) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool found = false;
  for (int depth = 0; frame != nullptr && depth < kDepthMax && !found; ++depth) {
    PyCodeObject* candidate = PyFrame_GetCode(frame);
    if (!is_library(candidate)) {
      code = candidate;  // kept alive for good: a failure may name it at any time
      instruction = PyFrame_GetLasti(frame);
      found = true;
    } else {
      Py_DECREF(candidate);
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return found;
}

#endif

}  // namespace

void note_location(c10::DeviceIndex device, uint64_t sequence) {
  PyCodeObject* code = nullptr;
  int instruction = 0;
  if (find_frame(code, instruction)) {
    last_code.store(code, std::memory_order_relaxed);
    last_instruction.store(instruction, std::memory_order_relaxed);
  } else {
    code = last_code.load(std::memory_order_relaxed);
    instruction = last_instruction.load(std::memory_order_relaxed);
  }
  auto& location = location_for(device, sequence);
  if (location.number.load(std::memory_order_relaxed) != sequence + 1) return;  // many calls of others came since
  location.instruction.store(instruction, std::memory_order_relaxed);
  location.code.store(code, std::memory_order_relaxed);
}

void note_thread(c10::DeviceIndex device, uint64_t sequence) {
  auto& location = location_for(device, sequence);
  location.code.store(nullptr, std::memory_order_relaxed);
  location.thread.store(current_thread(), std::memory_order_relaxed);
  location.number.store(sequence + 1, std::memory_order_relaxed);
}

ThreadTag current_thread() {
  if (torch::autograd::get_current_graph_task_id() != -1) {
    note_backward();
    return last_thread.load(std::memory_order_relaxed);
  }
  last_thread.store(this_thread, std::memory_order_relaxed);
  return this_thread;
}

ThreadTag thread_of(c10::DeviceIndex device, uint64_t sequence) {
  const auto& location = location_for(device, sequence);
  return location.number.load() == sequence + 1 ? location.thread.load() : 0;
}

std::string location_of(c10::DeviceIndex device, uint64_t sequence) {
  const auto& location = location_for(device, sequence);
  PyCodeObject* code = location.code.load();
  if (location.number.load() != sequence + 1 || code == nullptr) return {};
  return text_of(line_of({code, location.instruction.load()}));
}

Place current_place() {
  Place place;
  if (find_frame(place.code, place.instruction) || has_frames()) return place;
  return {last_code.load(std::memory_order_relaxed), last_instruction.load(std::memory_order_relaxed)};
}

Line line_of(const Place& place) {
  if (place.code == nullptr) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  Line line{text_of(place.code->co_filename), PyCode_Addr2Line(place.code, place.instruction), text_of(place.code->co_qualname)};
  PyGILState_Release(gil);
  return line;
}

}  // namespace forebay
