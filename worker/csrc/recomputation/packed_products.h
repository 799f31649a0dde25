// How storages can be made again, on its way to another worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "recomputation/lineage.h"

namespace forebay::worker {

struct PackedProduct {
  uint64_t id = 0;
  bool is_zeros = false;
  bool freed = false;
  bool absent = false;
  int depth = 0;
  uint64_t last_used = 0;
  uint64_t last_call = 0;
  std::vector<size_t> origin;  // places of calls
};

struct PackedCall {
  struct Input {
    uint64_t id = 0;
    bool is_read = false;
  };
  uint64_t number = 0;  // of its template
  uint64_t sequence = 0;
  double seconds = 0;
  wire::Words words;
  std::vector<Input> inputs;
  std::vector<uint64_t> outputs;
};

struct PackedProducts {
  uint64_t calls = 0;  // these two as Products has them
  uint64_t clock = 0;
  std::vector<PackedProduct> products;
  std::vector<PackedCall> made_by;  // in the order in which they came

  // Those that are let go.
  std::unordered_set<uint64_t> absent() const;
};

PackedProducts packed(const std::vector<Product*>& products);
void put_products(wire::Writer& out, const PackedProducts& packed);
// Throws wire::WireError.
PackedProducts get_products(wire::Reader& in);

}  // namespace forebay::worker
