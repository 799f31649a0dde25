// What comes to lie in rows because a call fits no device as it is: the largest of what it is given that a rule divides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "call/plan.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/owners.h"
#include "parallel/resting_rows.h"
#include "parallel/step_plan.h"
#include "sharding/ways.h"

namespace forebay::worker {

class RowsForRoom {
 public:
  RowsForRoom(Gang& gang, Storages& storages, Ways& ways, RestingRows& rows, const Owners& owners, StepPlan& step)
      : gang_(gang), storages_(storages), ways_(ways), rows_(rows), owners_(owners), step_(step) {}

  // Has some of what a call is given lie in rows by which a rule divides it. False where none does. All must be settled. Throws CommandError.
  bool divide(uint64_t number, const Plan& plan, const wire::Words& words) {
    return divide(number, plan, words, Rest::kAsItLies) || divide(number, plan, words, Rest::kCopies);
  }

  // As divide, of a call that has not begun, whatever it writes to; false, too, where there is no room for that.
  bool divide_ahead(uint64_t number, const Plan& plan, const wire::Words& words);

  // A call that cannot be carried out again, since it writes to what it is given, is never tried where that and what its operator may keep are more than a
  // device's memory: has it, or of lists what such items are given, rest in rows from here on. False where nothing comes to.
  bool rest(uint64_t number, const Plan& plan, const wire::Words& words);

 private:
  // A storage that may come to lie in rows of a dimension.
  struct Rows {
    uint64_t id;
    int64_t period;
    size_t dimension;
    const Layout* view;  // of all of it
  };

  // How what does not come to lie in rows is taken to be held.
  enum class Rest { kAsItLies, kCopies };
  bool divide(uint64_t number, const Plan& plan, const wire::Words& words, Rest rest);
  // Whether no device has room for these, whole, and as much beside as the largest takes.
  bool is_too_large(const std::vector<uint64_t>& ids) const;
  // As rest, of the largest that a call is given, and of all else of the same sizes.
  bool rest_largest(uint64_t number, const Plan& plan, const wire::Words& words);

  std::vector<Rows> possible(const Plan& plan, const wire::Words& words) const;
  // Of these, those of the same sizes, by the same dimension: as both of what a gradient is made of.
  static std::vector<Rows> alike(const std::vector<Rows>& all, const Rows& one);
  bool is_divided_by(const std::vector<Rows>& rows, uint64_t number, const Plan& plan, const wire::Words& words, Rest rest = Rest::kCopies);

  Gang& gang_;
  Storages& storages_;
  Ways& ways_;
  RestingRows& rows_;
  const Owners& owners_;
  StepPlan& step_;
};

}  // namespace forebay::worker
