// A call's constant part as it is sent: the same arguments as in its key once more, in full (docs/wire.md, Templates).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>

#include "base/operator_info.h"
#include "forebay/wire.h"
#include "recorder/inference.h"

namespace forebay {

uint8_t flags_of(const at::Tensor& tensor);

// Of all storages that the call makes.
int64_t new_bytes_of(const Prediction& prediction);

// All of a template but its operator's number. Throws where the stream cannot carry it.
wire::Writer template_of(const OperatorInfo& info, const torch::jit::Stack& stack, const Prediction& prediction, at::ScalarType default_dtype);

}  // namespace forebay
