// Makes plans of templates: resolves and checks what a call need not look at again.
#pragma once

#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

#include "call/plan.h"
#include "device/device.h"

namespace forebay::worker {

// Throws wire::WireError where the template does not fit the operator's schema or breaks a limit.
std::unique_ptr<Plan> make_plan(const wire::Template& source, c10::OperatorHandle op, const Device& device, Layouts& layouts);

}  // namespace forebay::worker
