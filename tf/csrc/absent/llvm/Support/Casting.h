// TensorFlow's headers include this one of LLVM, which its wheel has not got. They name its functions; nothing here uses one.
#pragma once

#include <optional>

namespace llvm {

struct Absent {};
void cast(Absent);
void cast_or_null(Absent);
void dyn_cast(Absent);
void dyn_cast_or_null(Absent);
void isa(Absent);
void isa_and_nonnull(Absent);

}  // namespace llvm
