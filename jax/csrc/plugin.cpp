// The library's one function, by which JAX finds all others.
#include <utility>

#include "objects.h"

namespace forebay::pjrt {
namespace {

// A function that is not served says so by its name.
template <size_t kPlace>
Error* refuse(void*) {
  return new Error{Code::kUnimplemented, std::string("PJRT_") + kFunctionNames[kPlace] + " is not served on the virtual device"};
}

template <size_t... kPlaces>
void refuse_all(Api& api, std::index_sequence<kPlaces...>) {
  ((api.functions[kPlaces] = reinterpret_cast<void*>(&refuse<kPlaces>)), ...);
}

Api made_api() {
  Api api{};
  api.bytes = sizeof(Api);
  api.version.bytes = sizeof(Version);
  api.version.major = kMajor;
  api.version.minor = kMinor;
  refuse_all(api, std::make_index_sequence<kFunctions>());
  Functions functions(api);
  enter_events(functions);
  enter_devices(functions);
  enter_buffers(functions);
  enter_executables(functions);
  return api;
}

}  // namespace
}  // namespace forebay::pjrt

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() {
  static const auto api = forebay::pjrt::made_api();
  return &api;
}
