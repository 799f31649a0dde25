// A call in words, for whoever reads of its failure.
#pragma once

#include <string>

#include "call/plan.h"

namespace forebay::worker {

// The operator's inputs: name, dtype and sizes of tensors (strides where they are not the usual ones), and what the template holds of the rest.
std::string inputs_of(const Plan& plan);

}  // namespace forebay::worker
