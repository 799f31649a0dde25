// Where operators of graphs are placed.
#pragma once

namespace forebay::tf {

// Has TensorFlow place on the host what host_operators() names, before it places all else.
void register_placement();

}  // namespace forebay::tf
