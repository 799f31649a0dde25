#include "python_device_library.h"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace py = pybind11;

namespace forebay::worker {

namespace {

class PythonDeviceLibrary final : public DeviceLibrary {
 public:
  explicit PythonDeviceLibrary(const py::object& library)
      : offer_(library.attr("offer").cast<std::string>()),
        bytes_min_(library.attr("bytes_min").cast<size_t>()),
        device_(library.attr("place").cast<std::string>()),
        library_(library) {}
  ~PythonDeviceLibrary() override {
    const py::gil_scoped_acquire lock;
    library_ = py::object();
  }
  PythonDeviceLibrary(const PythonDeviceLibrary&) = delete;
  PythonDeviceLibrary& operator=(const PythonDeviceLibrary&) = delete;

  const std::string& offer() const override { return offer_; }
  size_t bytes_min() const override { return bytes_min_; }
  const std::string& device() const override { return device_; }

  void begin(const std::string& name, size_t rank, size_t size) override { call("begin", name, rank, size); }
  void open(const std::string& name) override { call("open", name); }
  void end(const std::string& name) noexcept override { tell("end", name); }
  void decline(const std::string& why) noexcept override { tell("decline", why); }

 private:
  // What Python raises is thrown as a std::runtime_error, which needs no interpreter.
  template <typename... Arguments>
  void call(const char* method, const Arguments&... arguments) {
    const py::gil_scoped_acquire lock;
    try {
      library_.attr(method)(arguments...);
    } catch (py::error_already_set& error) {
      throw std::runtime_error(py::str(error.value()).cast<std::string>());
    }
  }
  void tell(const char* method, const std::string& argument) noexcept {
    const py::gil_scoped_acquire lock;
    try {
      library_.attr(method)(argument);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(method);
    }
  }

  std::string offer_;
  size_t bytes_min_;
  std::string device_;
  py::object library_;
};

}  // namespace

std::shared_ptr<DeviceLibrary> library_by_python(const py::object& library) { return std::make_shared<PythonDeviceLibrary>(library); }

}  // namespace forebay::worker
