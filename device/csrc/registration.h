// What takes the CUDA key of a stock PyTorch, each in its own file.
#pragma once

#include <string>
#include <vector>

namespace torch {
class Library;
}

namespace forebay {

void install_guard();         // guard.cpp
void install_hooks();         // hooks.cpp
void install_operators();     // registration.cpp

// Names of the operators that are sent to the worker as they are; it must allow them all.
std::vector<std::string>& recorded();  // registration.cpp

// Kernels that this side must have itself: making, viewing, copying, reading.
void register_kernels(torch::Library& library);  // kernels.cpp
// Operators PyTorch asks of CUDA devices alone, made of others.
void register_compositions(torch::Library& library);  // compositions.cpp

// Composite, with a choice of our own; for the autograd key too, since its parts have their own derivatives.
void register_attention(torch::Library& library);  // attention.cpp

}  // namespace forebay
