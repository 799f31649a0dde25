// Integer divisions that have no result.
#pragma once

namespace forebay::worker {

// From here on, in all threads of this process, an integer division by zero, or of the lowest number by -1, has the quotient that its
// dividend is, and remainder 0, instead of ending the process with SIGFPE (Intel's manual, volume 2, DIV and IDIV: #DE). That is what the
// second one wraps around to, as on GPUs and 64-bit Arm, where no division traps; the first one is left unchecked by kernels of PyTorch's
// alone. Does nothing on other processors than x86-64.
void outlive_integer_divisions();

}  // namespace forebay::worker
