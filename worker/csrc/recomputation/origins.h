// That storages can be made again, and how that ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "recomputation/lineage.h"

namespace forebay::worker {

// What a command uses, as often as it does.
class ProductLocks {
 public:
  void add(Product& product, uint64_t clock) {
    product.last_used = clock;
    ++product.locks;
    products_.push_back(&product);
  }
  void release_to(size_t count) {
    for (; products_.size() > count; products_.pop_back()) --products_.back()->locks;
  }
  void forget(const Product& product) {
    if (product.locks > 0) std::erase(products_, &product);
  }
  size_t size() const { return products_.size(); }

 private:
  std::vector<Product*> products_;
};

class Origins {
 public:
  // The product cannot be made again from here on; or not by these calls.
  void drop(Product& product);
  void drop(Lineage origin, Product& product);
  // Nobody wants the calls of this lineage but their outputs.
  void release(Lineage origin);
  // What is in memory stays there until it is freed, rather than keep the product, of which it would be made again.
  void give_up(const Product& product);

  // One that its client has freed, and that was needed until now; null: there is none.
  Product* take_orphan();
  void forget(const Product& product) {
    if (product.is_orphan) std::erase(orphans_, &product);
  }

 private:
  std::vector<Product*> orphans_;
};

}  // namespace forebay::worker
