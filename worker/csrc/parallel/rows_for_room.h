// What comes to lie in rows because a call fits no device as it is: the largest of what it is given that a rule divides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "call/plan.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/resting_rows.h"
#include "sharding/ways.h"

namespace forebay::worker {

class RowsForRoom {
 public:
  RowsForRoom(Gang& gang, Storages& storages, Ways& ways, RestingRows& rows) : gang_(gang), storages_(storages), ways_(ways), rows_(rows) {}

  // Has some of what a call is given lie in rows by which a rule divides it. False where none does. All must be settled. Throws CommandError.
  bool divide(uint64_t number, const Plan& plan, const wire::Words& words);

 private:
  // A storage that may come to lie in rows of a dimension.
  struct Rows {
    uint64_t id;
    int64_t period;
    size_t dimension;
    const Layout* view;  // of all of it
  };

  std::vector<Rows> possible(const Plan& plan, const wire::Words& words) const;
  bool is_divided_by(const std::vector<Rows>& rows, uint64_t number, const Plan& plan, const wire::Words& words);

  Gang& gang_;
  Storages& storages_;
  Ways& ways_;
  RestingRows& rows_;
};

}  // namespace forebay::worker
