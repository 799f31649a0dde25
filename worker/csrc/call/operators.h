// Which operators a client may name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <forebay/wire.h>

namespace forebay::worker {

// FNV-1a, 64 bits.
uint64_t schema_hash(const std::string& text);

// Why the operator is off the list; empty if it is allowed.
std::string reason_against(const c10::OperatorHandle& op);

// An operator of the list. Throws wire::WireError naming the operator, and what is against it.
c10::OperatorHandle resolve(const std::string& name, const std::string& overload, uint64_t hash);

// All operators of the list, as "aten::add.Tensor", with their schemas' hashes.
std::vector<std::pair<std::string, uint64_t>> allowed();

// The operators of namespace aten that are off the list, each with its reason.
std::vector<std::pair<std::string, std::string>> denied();

}  // namespace forebay::worker
