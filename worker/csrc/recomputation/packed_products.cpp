#include "recomputation/packed_products.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

namespace forebay::worker {

namespace {

constexpr size_t kCallsMax = size_t{1} << 24;
enum Flags : uint8_t { kZeros = 1, kFreed = 2, kAbsent = 4 };

// Each once, by when they came.
std::vector<const RecordedCall*> calls_of(const std::vector<Product*>& products) {
  std::vector<const RecordedCall*> calls;
  for (const Product* product : products) {
    for (const auto& call : product->origin) calls.push_back(call.get());
  }
  std::sort(calls.begin(), calls.end(), [](const auto* one, const auto* other) { return std::pair(one->sequence, one) < std::pair(other->sequence, other); });
  calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
  return calls;
}

PackedCall packed(const RecordedCall& call) {
  PackedCall packed{call.number, call.sequence, call.seconds, call.words, {}, {}};
  for (const Input& input : call.given()) packed.inputs.push_back({input.product->id, input.is_read});
  for (const Product* output : call.outputs) packed.outputs.push_back(output->id);
  return packed;
}

void put_product(wire::Writer& out, const PackedProduct& product) {
  out.varint(product.id);
  out.u8(static_cast<uint8_t>((product.is_zeros ? kZeros : 0) | (product.freed ? kFreed : 0) | (product.absent ? kAbsent : 0)));
  for (const uint64_t number : {static_cast<uint64_t>(product.depth), product.last_used, product.last_call}) out.varint(number);
  out.varint(product.origin.size());
  for (const size_t place : product.origin) out.varint(place);
}

PackedProduct get_product(wire::Reader& in, size_t calls) {
  PackedProduct product;
  product.id = in.varint();
  const auto flags = static_cast<uint8_t>(in.bounded(kZeros | kFreed | kAbsent, "what is known of a storage"));
  product.is_zeros = flags & kZeros;
  product.freed = flags & kFreed;
  product.absent = flags & kAbsent;
  product.depth = static_cast<int>(in.bounded(std::numeric_limits<int>::max(), "a length of a chain of calls"));
  product.last_used = in.varint();
  product.last_call = in.varint();
  for (size_t left = in.count(calls, "the number of calls that make a storage"); left > 0; --left) {
    product.origin.push_back(in.bounded(calls - 1, "the place of a call"));
  }
  if (product.absent && product.origin.empty()) throw wire::WireError("a storage that is let go, and that nothing makes again");
  return product;
}

void put_call(wire::Writer& out, const PackedCall& call) {
  out.varint(call.number);
  out.varint(call.sequence);
  out.f64(call.seconds);
  out.varint(call.words.size());
  for (const uint64_t word : call.words) out.varint(word);
  out.varint(call.inputs.size());
  for (const auto& input : call.inputs) {
    out.varint(input.id);
    out.u8(input.is_read);
  }
  out.varint(call.outputs.size());
  for (const uint64_t id : call.outputs) out.varint(id);
}

PackedCall get_call(wire::Reader& in) {
  PackedCall call;
  call.number = in.varint();
  call.sequence = in.varint();
  call.seconds = in.f64();
  for (size_t left = in.count(wire::kTemplatesItemsMax, "the number of words"); left > 0; --left) call.words.push_back(in.varint());
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) {
    const uint64_t id = in.varint();
    call.inputs.push_back({id, in.u8() != 0});
  }
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) call.outputs.push_back(in.varint());
  return call;
}

}  // namespace

std::unordered_set<uint64_t> PackedProducts::absent() const {
  std::unordered_set<uint64_t> found;
  for (const auto& product : products) {
    if (product.absent) found.insert(product.id);
  }
  return found;
}

PackedProducts packed(const std::vector<Product*>& products) {
  PackedProducts all;
  std::unordered_map<const RecordedCall*, size_t> places;
  for (const RecordedCall* call : calls_of(products)) {
    places.emplace(call, places.size());
    all.made_by.push_back(packed(*call));
  }
  for (const Product* product : products) {
    PackedProduct one{product->id, product->is_zeros, product->freed, product->absent, product->depth, product->last_used, product->last_call, {}};
    for (const auto& call : product->origin) one.origin.push_back(places.at(call.get()));
    all.products.push_back(std::move(one));
  }
  return all;
}

void put_products(wire::Writer& out, const PackedProducts& packed) {
  out.varint(packed.calls);
  out.varint(packed.clock);
  out.varint(packed.made_by.size());
  for (const auto& call : packed.made_by) put_call(out, call);
  out.varint(packed.products.size());
  for (const auto& product : packed.products) put_product(out, product);
}

PackedProducts get_products(wire::Reader& in) {
  PackedProducts packed;
  packed.calls = in.varint();
  packed.clock = in.varint();
  for (size_t left = in.count(kCallsMax, "the number of calls that make storages"); left > 0; --left) packed.made_by.push_back(get_call(in));
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) {
    packed.products.push_back(get_product(in, packed.made_by.size()));
  }
  if (!in.done()) throw wire::WireError("something behind how storages can be made again");
  return packed;
}

}  // namespace forebay::worker
