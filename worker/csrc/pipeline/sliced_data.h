// Data that lies on the devices, of which a segment is given slices as batches, such as data[0:64]: each time others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "call/templates.h"
#include "device/storage.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// By storage. None that the segment writes to, or that comes anew itself.
using SlicedData = std::set<uint64_t>;
SlicedData sliced_data_of(const Path& path, Templates& templates, Storages& storages);

// What a call is given of it.
struct DataSlice {
  size_t place;        // of the storage, among the call's words; its offset follows
  uint64_t data;
  const Layout* view;
  int64_t begin;       // bytes, as the next
  int64_t bytes;
};
std::vector<DataSlice> slices_of(const Plan& plan, const wire::Words& words, const SlicedData& data, Storages& storages);

}  // namespace forebay::worker
