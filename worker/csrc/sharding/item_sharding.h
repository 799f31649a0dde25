// How a call is divided whose operator takes the items of its lists one by one, as optimizers' do: each item by rows of its own, or as copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "call/plan.h"
#include "gang/gang.h"
#include "sharding/local_call.h"
#include "sharding/way.h"

namespace forebay::worker {

class ItemSharding {
 public:
  ItemSharding(Gang& gang, int64_t parts, HeldLookup held, uint64_t number, const Plan& plan, const wire::Words& words);

  // None where an item does not lie in whole rows, or the call writes to what is no item. Throws wire::WireError as making a plan does.
  std::optional<Way> way();

 private:
  // The rows by which an item is divided.
  struct Cut {
    std::vector<int64_t> sizes;  // of the whole
    size_t dimension;
    int64_t rows;
  };
  // A tensor argument that is an item of a list, or none's.
  struct Place {
    size_t tensor;
    std::optional<size_t> item;
  };

  void note(const wire::Argument& argument, std::optional<size_t> item);
  bool find_cuts();
  bool divide_tensors();
  bool divide_results();
  std::optional<Way> way_of_norms();
  std::optional<int64_t> period_of(size_t tensor) const;
  uint64_t storage_of(size_t tensor) const { return words_[starts_[tensor]]; }

  Gang& gang_;
  const int64_t parts_;
  HeldLookup held_;
  const uint64_t number_;
  const size_t items_;
  const wire::Words& words_;
  std::vector<size_t> starts_;  // where the words of each tensor argument begin
  std::vector<bool> writes_;    // whether the call writes to it
  std::vector<Place> places_;
  std::map<size_t, Cut> cuts_;  // by item; none of one of copies
  LocalCall call_;
};

}  // namespace forebay::worker
