// The storages that calls of a session were given or made, and the clocks by which what is let go is chosen among them.
#pragma once

#include <cstdint>
#include <vector>

#include "call/templates.h"
#include "device/storage.h"
#include "recomputation/lineage.h"
#include "recomputation/packed_products.h"

namespace forebay::worker {

class Products {
 public:
  Products(ProductHost& host, Storages& storages) : host_(host), storages_(storages) {}
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Known from here on.
  Product& of(uint64_t id);
  const std::vector<Product*>& all() const { return all_; }
  // One ends.
  void forget(const Product& product);
  // All end.
  void clear();
  // What the client has that is let go.
  std::vector<Product*> lacking() const;
  bool lacks_any() const;

  // For an image; and in a worker that goes on from it, which has the image's storages, knows none yet, and has the templates of their calls.
  PackedProducts packed() const;
  // These two throw wire::WireError. First, so that storages which are let go are known as such; and how they are made.
  void resume(const PackedProducts& packed);
  void resume_calls(const PackedProducts& packed, Templates& templates);

  uint64_t calls = 0;  // of the program
  uint64_t clock = 0;  // counts them, and those that are carried out again

 private:
  ProductHost& host_;
  Storages& storages_;
  std::vector<Product*> all_;
};

}  // namespace forebay::worker
