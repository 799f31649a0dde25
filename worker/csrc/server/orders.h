// What the pool, and the processes that compile for a session, tell the thread that serves it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <forebay/wire.h>

#include "call/kernel.h"
#include "device/storage.h"
#include "session/image_folder.h"
#include "tier2/library.h"
#include "tier2/specialization.h"

namespace forebay::worker {

namespace orders {

struct OpenLease {
  uint64_t epoch;
  int64_t limit_bytes;
};
struct CloseLease {
  uint64_t epoch;
};
struct Park {
  ParkingSpace space;
};
struct Restore {};
// What the session held at a checkpoint becomes the first image of another one, in its folder.
struct Copy {
  std::string session;
  uint64_t checkpoint;
  ImageFolder folder;
};
// The worker is to end; whatever waits gives up at once.
struct End {};
// The library of a segment, with what is to be said of it; `is_shared`: it is for several sizes. `took`: of tier 1's time, in a session before.
struct TakeLibrary {
  uint64_t segment;
  std::shared_ptr<Library> library;
  std::string note;
  bool is_shared;
  std::optional<double> took;
};
struct RefuseLibrary {
  uint64_t segment;
  std::string why;
};
// No library is known of the segment, for now.
struct LackLibrary {
  uint64_t segment;
};
struct WidenSegment {
  uint64_t segment;
  WordPlaces changing;
};
// Libraries that go along as the session leaves, of kLibrariesBytesMax at most.
struct ExportLibraries {
  std::string libraries;
};
// The kernel of this number is compiled and loaded.
struct TakeKernel {
  uint64_t kernel;
  std::string name;
  std::vector<KernelParameter> parameters;
};
struct RefuseKernel {
  uint64_t kernel;
  wire::FailureCode code;
  std::string why;
};

}  // namespace orders

using Order = std::variant<orders::OpenLease, orders::CloseLease, orders::Park, orders::Restore, orders::Copy, orders::End, orders::TakeLibrary, orders::RefuseLibrary, orders::LackLibrary, orders::WidenSegment,
                           orders::ExportLibraries, orders::TakeKernel, orders::RefuseKernel>;

}  // namespace forebay::worker
