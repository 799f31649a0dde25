// What is said of operators that are carried out on this machine although the program did not ask for that.
#pragma once

namespace forebay::tf {

// Has a line written to the error output, once for each operator. FOREBAY_TENSORFLOW_NOTES=off leaves them out.
void register_host_notes();

}  // namespace forebay::tf
