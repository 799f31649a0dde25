// PyTorch's default dtype that the calls of a template are made under, as its flags have it (docs/wire.md, Templates).
#pragma once

#include <cstdint>

namespace forebay::wire {

constexpr int kTemplateDtypeShift = 1;
constexpr uint8_t kUsualDtype = 6;  // float32, for which the flags have 0

constexpr uint8_t with_default_dtype(uint8_t flags, uint8_t dtype) {
  return static_cast<uint8_t>(flags | (dtype == kUsualDtype ? 0 : dtype << kTemplateDtypeShift));
}

constexpr uint8_t default_dtype_of(uint8_t flags) {
  return flags >> kTemplateDtypeShift == 0 ? kUsualDtype : static_cast<uint8_t>(flags >> kTemplateDtypeShift);
}

}  // namespace forebay::wire
