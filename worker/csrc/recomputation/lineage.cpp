#include "recomputation/lineage.h"

namespace forebay::worker {

RecordedCall::RecordedCall(const Call& call, double seconds, const std::vector<Input>& inputs)
    : number(call.number), plan(call.plan), words(call.words), sequence(call.sequence), seconds(seconds) {
  uses_.reserve(inputs.size());
  for (const Input& input : inputs) {
    auto& users = input.product->users;
    uses_.push_back({input.product, users.insert(users.end(), {this, input.is_read})});
  }
}

RecordedCall::~RecordedCall() {
  for (const Use& use : uses_) use.input->users.erase(use.place);
}

std::vector<Product*> RecordedCall::inputs() const {
  std::vector<Product*> found;
  found.reserve(uses_.size());
  for (const Use& use : uses_) found.push_back(use.input);
  return found;
}

std::vector<Input> RecordedCall::given() const {
  std::vector<Input> found;
  found.reserve(uses_.size());
  for (const Use& use : uses_) found.push_back({use.input, use.place->reads});
  return found;
}

Product::~Product() { host_.forget(*this); }

void Product::before_read() { host_.read(*this); }

void Product::before_write() { host_.move(*this); }

void Product::before_placed_write() { host_.write(*this); }

bool Product::stays_when_freed() { return host_.keeps_freed(*this); }

}  // namespace forebay::worker
