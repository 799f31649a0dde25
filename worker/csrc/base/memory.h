// The flavor's memory limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Allocator.h>

namespace forebay::worker {

// Makes every tensor that this process allocates on the host from now on, temporaries included, count against the limit of
// set_host_limit. Beyond it allocation throws c10::OutOfMemoryError. To be called once, before any operator runs.
void install_host_limit();
void set_host_limit(int64_t bytes);
// Who is asked to free so many bytes before an allocation of the calling thread would exceed the limit, in turn until there is room: what only saves time
// (cached.h), then what a session could go back to (versions.h). Null: nobody is.
enum class Reclaim { kCached, kVersions };
void reclaim_on_host_by(Reclaim turn, std::function<void(int64_t bytes)> reclaim);
// What counts against the limit.
int64_t allocated_on_host();

// Zeroed memory under the same limit, which costs nothing where it is fresh from the system.
c10::DataPtr allocate_zeroed_on_host(int64_t bytes);

// Memory for what a session holds off its device, which is under the device's limit already.
c10::DataPtr allocate_uncounted_on_host(int64_t bytes);

// As long as it lives, what the calling thread allocates is not counted: what this worker needs for itself, and is little.
class UncountedOnHost {
 public:
  UncountedOnHost();
  ~UncountedOnHost();
  UncountedOnHost(const UncountedOnHost&) = delete;
  UncountedOnHost& operator=(const UncountedOnHost&) = delete;
};

// Memory that a library of this process has allocated, under the same limit (unless it is not to be counted) until `release` gives it back.
c10::DataPtr adopt_on_host(void* data, int64_t bytes, std::function<void()> release, bool is_counted);

// Bounds what operators take from the host without asking PyTorch's allocator: the process's own memory now, the limit, and some room.
void fence_process(int64_t limit_bytes);

}  // namespace forebay::worker
