#include "recomputation/products.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace forebay::worker {

namespace {

bool is_lacking(const Product* product) { return product->absent && !product->freed; }

std::shared_ptr<RecordedCall> unpacked(const PackedCall& call, Products& products, Templates& templates) {
  Plan& plan = templates.at(call.number);
  if (call.words.size() != plan.words.size()) throw wire::WireError("a call that makes a storage again, with other words than its template has");
  std::vector<Input> inputs;
  for (const auto& input : call.inputs) inputs.push_back({&products.of(input.id), input.is_read});
  auto recorded = std::make_shared<RecordedCall>(RecordedCall::Call{call.number, plan, call.words, call.sequence}, call.seconds, inputs);
  for (const uint64_t id : call.outputs) recorded->outputs.push_back(&products.of(id));
  return recorded;
}

}  // namespace

Product& Products::of(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.watch() == nullptr) {
    auto product = std::make_unique<Product>(host_, id, entry);
    product->last_used = clock;
    product->last_call = calls;
    product->place = all_.size();
    all_.push_back(product.get());
    entry.watch_by(std::move(product));
  }
  return static_cast<Product&>(*entry.watch());
}

void Products::forget(const Product& product) {
  all_[product.place] = all_.back();
  all_[product.place]->place = product.place;
  all_.pop_back();
}

void Products::clear() {
  for (Product* product : all_) product->origin.clear();
  while (!all_.empty()) all_.back()->entry.watch_by(nullptr);
}

std::vector<Product*> Products::lacking() const {
  std::vector<Product*> found;
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(found), is_lacking);
  return found;
}

bool Products::lacks_any() const { return std::any_of(all_.begin(), all_.end(), is_lacking); }

PackedProducts Products::packed() const {
  PackedProducts packed = worker::packed(all_);
  packed.calls = calls;
  packed.clock = clock;
  return packed;
}

void Products::resume(const PackedProducts& packed) {
  calls = packed.calls;
  clock = packed.clock;
  for (const auto& one : packed.products) {
    Product& product = of(one.id);
    if (product.place + 1 != all_.size() || (one.absent && product.entry.holds_anything())) throw wire::WireError("a storage that comes twice, or is let go and comes");
    product.is_zeros = one.is_zeros;
    product.freed = one.freed;
    product.absent = one.absent;
    product.depth = one.depth;
    product.last_used = one.last_used;
    product.last_call = one.last_call;
  }
}

void Products::resume_calls(const PackedProducts& packed, Templates& templates) {
  std::vector<std::shared_ptr<RecordedCall>> calls;
  for (const auto& call : packed.made_by) calls.push_back(unpacked(call, *this, templates));
  for (const auto& one : packed.products) {
    for (const size_t place : one.origin) of(one.id).origin.push_back(calls[place]);
  }
}

}  // namespace forebay::worker
