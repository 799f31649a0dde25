// What the arguments of some operators must be to one another, because their kernels take it for granted: PyTorch calls them only with what it
// has made itself. A client may call them with anything.
#pragma once

#include <string>

#include "call/plan.h"

namespace forebay::worker {

// Holds the arguments of a plan against contracts.inc: a sentence on what is wrong, or nothing. Throws std::logic_error where a contract
// does not fit the operator's schema.
std::string breach_of_contract(const Plan& plan);

// Adds the arguments whose elements a kernel takes for neighbours, and that are not.
void note_apart(Plan& plan);

// Adds what check_bounds has to look at before each call: numbers, and with of_elements whole numbers in tensors, where the host can look at them.
void note_bounds(Plan& plan, bool of_elements);

}  // namespace forebay::worker
