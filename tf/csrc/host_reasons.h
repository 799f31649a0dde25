// Which operators TensorFlow carries out on this machine although there is a virtual device, and why.
#pragma once

#include <set>
#include <string>

#include "tensorflow/core/framework/types.h"

namespace forebay::tf {

// Why XLA's program for the operator is not taken, as the end of a sentence; nullptr where it is.
const char* why_on_host(const std::string& op);

// The types with which the operator is on the host for why_of_types(); none for most.
const std::set<tensorflow::DataType>& types_on_host(const std::string& op);

// As why_on_host(), for an operator that has some.
const char* why_of_types(const std::string& op);

// The types with which the operator is neither computed on the device nor on the host; none for most.
const std::set<tensorflow::DataType>& types_refused(const std::string& op);

}  // namespace forebay::tf
