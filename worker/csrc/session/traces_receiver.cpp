#include "session/traces_receiver.h"

#include <string>
#include <utility>

#include <forebay/traces_as_bytes.h>

namespace forebay::worker {

namespace {

const std::vector<wire::Word> kAllocates{wire::Word::kNew};

}  // namespace

void TracesReceiver::take(wire::Reader& in, Templates& templates, wire::Traces& traces, wire::Words& freed) {
  const size_t size = in.count(wire::kChunkBytesMax, "the size of a chunk");
  if (size > wire::kTracesBytesMax - bytes_.size()) throw wire::WireError("a tree of more than " + std::to_string(wire::kTracesBytesMax) + " bytes");
  const uint8_t* part = in.raw(size);
  bytes_.insert(bytes_.end(), part, part + size);
  if (size > 0) return;
  const auto bytes = std::exchange(bytes_, {});
  wire::Reader tree(bytes.data(), bytes.size());
  for (size_t left = tree.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) freed.push_back(tree.varint());
  wire::TracesAsBytes::get(tree, traces, [&](uint64_t key) -> const std::vector<wire::Word>* {
    if (wire::is_allocation(key)) return &kAllocates;
    const uint64_t number = wire::key_value(key);
    return number < templates.plans().size() ? &templates.known(number).words : nullptr;
  });
  if (!tree.done()) throw wire::WireError("something behind a tree");
  segments_.resume(image_.segments(), traces);
}

}  // namespace forebay::worker
