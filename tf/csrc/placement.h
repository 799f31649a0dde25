// Where operators of graphs are placed.
#pragma once

#include "tensorflow/core/graph/graph.h"

namespace forebay::tf {

// Has TensorFlow place on the host what host_operators() names, before it places all else.
void register_placement();

// Whether that was done with a node, rather than asked for by the program.
bool is_placed_here(const tensorflow::Node& node);

}  // namespace forebay::tf
