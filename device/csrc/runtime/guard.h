// c10's guard for CUDA devices.
#pragma once

namespace forebay {

void install_guard();

}  // namespace forebay
