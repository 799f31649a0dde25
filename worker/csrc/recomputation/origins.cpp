#include "recomputation/origins.h"

#include <unordered_set>
#include <utility>

namespace forebay::worker {

void Origins::give_up(const Product& product) {
  std::unordered_set<const Product*> seen;  // what was made in many ways is looked at once
  std::vector<const Product*> left{&product};
  while (!left.empty()) {
    std::vector<Product*> outputs;
    for (const User& user : left.back()->users) outputs.insert(outputs.end(), user.call->outputs.begin(), user.call->outputs.end());
    left.pop_back();
    for (Product* output : outputs) {
      if (!seen.insert(output).second) continue;
      if (!output->absent) {
        drop(*output);
      } else if (output->freed) {
        left.push_back(output);
      }
    }
  }
}

void Origins::drop(Product& product) {
  product.depth = 0;
  drop(std::exchange(product.origin, {}), product);
}

void Origins::drop(Lineage origin, Product& product) {
  for (const auto& call : origin) std::erase(call->outputs, &product);
  release(std::move(origin));
}

void Origins::release(Lineage origin) {
  std::vector<Product*> inputs;
  for (const auto& call : origin) {
    for (Product* input : call->inputs()) inputs.push_back(input);
  }
  origin.clear();
  for (Product* input : inputs) {
    if (!input->freed || !input->users.empty() || input->is_orphan) continue;
    input->is_orphan = true;
    orphans_.push_back(input);
  }
}

Product* Origins::take_orphan() {
  if (orphans_.empty()) return nullptr;
  Product* const orphan = orphans_.back();
  orphans_.pop_back();
  orphan->is_orphan = false;
  return orphan;
}

}  // namespace forebay::worker
