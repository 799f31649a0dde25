// What a session's program brings of its own: kernels, and whole programs.
#pragma once

#include "session/session_kernels.h"
#include "session/session_programs.h"

namespace forebay::worker {

struct UserCode {
  SessionKernels kernels;
  SessionPrograms programs;
};

}  // namespace forebay::worker
