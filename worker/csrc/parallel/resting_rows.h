// What rests in rows, as a step's plan says (step_plan.h): how it comes to lie in them, and how each device has a copy for a call divided by other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "call/plan.h"
#include "device/storage.h"
#include "parallel/owners.h"
#include "parallel/shares.h"
#include "parallel/step_plan.h"
#include "sharding/way.h"

namespace forebay::worker {

class RestingRows {
 public:
  RestingRows(Storages& storages, Shares& shares, Owners& owners, const StepPlan& step) : storages_(storages), shares_(shares), owners_(owners), step_(step) {}

  // Of what a call is given, what must come to lie in its rows: where it lies with one device, or is copies that the call writes to.
  std::vector<uint64_t> missing(const Plan& plan, const wire::Words& words) const;
  // Has it lie in them. All must be settled.
  void place(const Plan& plan, const wire::Words& words);
  // As place, of items of lists that one device keeps whole, beside others of the same item in rows: as an optimizer's new states beside gradients.
  void place_items(const std::vector<std::vector<uint64_t>>& items, const std::vector<uint64_t>& given);
  // Has one lie in rows, whole with one device or copies until then. `given`: what it is used with.
  void cut(uint64_t id, int64_t period, const std::vector<uint64_t>& given);
  // Rows that lie on the host come back to the devices.
  void return_from_host(const std::vector<uint64_t>& ids);
  // Copies what a way wants copied. False where that is nothing, or a device has no room for it. All must be settled.
  bool copy_for(const Way& way, const Plan& plan, const wire::Words& words);
  // Turns what a way wants turned, likewise. And new storages of a call that is carried out, by number, where the devices have room for that.
  bool turn_for(const Way& way, const Plan& plan, const wire::Words& words);
  void turn_back(const std::vector<std::pair<size_t, int64_t>>& made, const Plan& plan, const wire::Words& words);

 private:
  // Whether it was turned.
  bool turn(uint64_t id, int64_t period, const std::vector<uint64_t>& given);

  Storages& storages_;
  Shares& shares_;
  Owners& owners_;
  const StepPlan& step_;
};

}  // namespace forebay::worker
