// Programs that Python compiles and carries out: an object of forebay_worker.user_code.programs.Executable.
#pragma once

#include <memory>
#include <string>

#include <pybind11/pybind11.h>

#include "call/program.h"

namespace forebay::worker {

// Calls `compile` with the program, where it runs, and what it calls back by. Throws CommandError.
std::unique_ptr<Executable> compile_by_python(const pybind11::object& compile, const std::string& module, const wire::ProgramPlacement& placement, CallbackHost& callbacks);

}  // namespace forebay::worker
