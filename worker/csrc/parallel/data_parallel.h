// Data parallelism, found from the calls: where a batch of rows comes to a program again and again, each device of the gang computes on its part of
// the rows, and has a copy of all else.
//
// How a call is divided is decided by its operator's strategy (strategies/strategy.h), from its template and the placements of what it is given: never
// by values. A call without one is carried out whole on this device. What is still to be made of the devices' parts, such as a sum, is made
// when a call or the program uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <forebay/gang_work.h>

#include "call/call.h"
#include "call/plan.h"
#include "device/placement.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/batches.h"
#include "parallel/owners.h"
#include "parallel/resting_rows.h"
#include "parallel/rows_for_room.h"
#include "parallel/shares.h"
#include "parallel/slices.h"
#include "parallel/step_plan.h"
#include "sharding/way.h"
#include "sharding/ways.h"

namespace forebay::worker {

class DataParallel {
 public:
  // `settle`: waits until all that was sent to other devices is carried out; false where something failed.
  using Settle = std::function<bool()>;
  DataParallel(Gang& gang, const Device& device, Storages& storages, Layouts& layouts, Caller& caller, const GangWork& work, Settle settle)
      : gang_(gang),
        device_(device),
        storages_(storages),
        layouts_(layouts),
        caller_(caller),
        settle_(std::move(settle)),
        shares_(gang, device, storages, layouts),
        owners_(gang, storages, caller, shares_),
        ways_(gang, device, devices()),
        step_(gang, storages, work, [this](const StepRecord::Call& call, const HeldLookup& held) -> const Way& { return ways_.of(call, held); }),
        batches_(devices(), storages, step_),
        slices_(gang, device, storages, batches_),
        rows_(storages, shares_, owners_, step_),
        rows_for_room_(gang, storages, ways_, rows_, owners_, step_) {
    whole_.whole = true;
    owned_.by_owners = true;
    owners_.rest_by([this](uint64_t id) { return step_.period_of(id); });
  }
  DataParallel(const DataParallel&) = delete;  // its parts call it
  DataParallel& operator=(const DataParallel&) = delete;

  // To be told of uploads, and of calls that were carried out.
  Batches& batches() { return batches_; }
  // Looks for a batch among the uploads that this call is the first to use; calls are divided from the first one on. The call as it is to be carried out,
  // if it is given slices of data that come like batches; else null.
  std::unique_ptr<Slices::Taken> look(uint64_t number, const Plan& plan, const wire::Words& words);
  bool is_on() const { return on_; }
  // Whether a call that is given the storage is to have it in rows.
  bool is_in_rows(uint64_t id) const;
  // Why nothing is divided while it is not on.
  wire::Alone why_off() const { return has_room_ ? wire::Alone::kNoBatch : wire::Alone::kNoRoom; }
  // Templates have new numbers from here on.
  void forget() {
    ways_.forget();
    step_.forget();
  }

  // A call whose lists have items in rows and others that one device keeps, as two: each device has its rows of the ones, and the owners update the others.
  // None where the call is carried out as it is.
  std::vector<GangTemplates::Part> parts_by_placement(uint64_t number, const Plan& plan, const wire::Words& words);
  // Null where something must be moved before, or the call comes with such placements for the first time: then all must be settled, and it is `prepared`.
  Way* known(uint64_t number, Plan& plan, const wire::Words& words);
  // Throws CommandError, what the operator throws, wire::WireError.
  Way& prepared(uint64_t number, Plan& plan, const wire::Words& words);
  // Whether all that was sent must be known to be carried out before the call writes to what was there.
  bool must_settle(const Way& way, const Plan& plan) const { return !way.composition && !plan.mutated.empty() && may_fail_; }
  void settled() { may_fail_ = false; }
  // Whether several owners carry out the present call.
  bool is_parted() const { return parts_.size() > 1; }
  // Carries out a call. Throws as Caller::run; then no device holds its results.
  void carry_out(Way& way, uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence);

  // Has the devices carry out by rows, from here on, a call that fits none of them. False where no rule divides it. All must be settled, and the call
  // repeatable. Throws CommandError.
  bool divide_for_room(uint64_t number, const Plan& plan, const wire::Words& words) {
    if (!rows_for_room_.divide(number, plan, words)) return false;
    on_ = has_room_ = true;
    return true;
  }
  // Makes storages whole on this device. All must be settled.
  void gather(const std::vector<uint64_t>& ids);
  // As gather, of what is read alone: the other devices keep their copies.
  void gather_to_read(const std::vector<uint64_t>& ids);
  // Has one device alone keep storages. All must be settled. Throws CommandError.
  void keep(const std::vector<uint64_t>& ids, int place);
  // Gathers all there is, in memory of the host what no device may have room for.
  void park();

 private:
  friend class GangImage;  // takes what was found along, and has calls divided from the next batch on where it cannot

  Held held(uint64_t id) const;
  // What a call is given.
  struct Given {
    bool fits = true;  // all of it that is held together is copies or in rows, and the rest untouched
    bool has_rows = false;
    int64_t untouched_bytes = 0;
  };
  // Notes it as used.
  Given note_use(const Plan& plan, const wire::Words& words);
  // Gives untouched storages the placements that the way says.
  void place_untouched(const Way& way, const Plan& plan, const wire::Words& words);
  // The way of a call whose tensors are where they may be; all must be settled. What must be copied first was copied.
  Way& way_with_copies(uint64_t number, const Plan& plan, const wire::Words& words, const std::vector<uint64_t>& ids);
  // Whether a way serves a call with such words, and every device has room for what it makes meanwhile.
  bool serves(const Way& way, const Plan& plan, const wire::Words& words) const;
  // Copies that a way wants in rows.
  std::map<uint64_t, int64_t> to_be_cut(const Way& way, const Plan& plan, const wire::Words& words);
  void place_batches(const std::vector<uint64_t>& ids);
  // Makes what is still to be made of the devices' parts, and with it, in one exchange, the small ones that were not asked for yet.
  void merge(std::vector<uint64_t> ids);
  // The parts in which owners carry out a call; none where it is not theirs.
  std::vector<Owners::Part> owned_parts(uint64_t number, Plan& plan, const wire::Words& words);
  // Has this device have room for what a call makes and is given in rows, as far as can be.
  void make_room_for_whole(const Plan& plan, const std::vector<uint64_t>& ids);
  // Whether each device has room for what a call makes and is given, or has by now.
  bool has_room_for(const Plan& plan, const std::vector<uint64_t>& ids);
  void run_whole(Plan& plan, const wire::Words& words);
  void run_on_whole(Plan& plan, const wire::Words& words, const std::vector<uint64_t>& ids);
  // Where memory does not suffice on a device for what an operator keeps while it runs, tries again when it keeps nothing but what the call is given.
  // `run`, `send`: here, and on another device.
  void run_where_room(const Plan& plan, const wire::Words& words, const std::function<void()>& run, const std::function<void(int)>& send);
  void run_divided(const Way& way, uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence);
  void run_composed(const Way& way, const Plan& plan, const wire::Words& words, uint64_t sequence);
  // Each storage has one home again.
  void leave();
  int64_t devices() const { return static_cast<int64_t>(gang_.size()); }

  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Layouts& layouts_;
  Caller& caller_;
  Settle settle_;
  Shares shares_;
  Owners owners_;
  Ways ways_;
  StepPlan step_;
  Batches batches_;
  Slices slices_;
  RestingRows rows_;
  RowsForRoom rows_for_room_;
  const HeldLookup holding_ = [this](uint64_t id) { return held(id); };
  bool on_ = false;
  bool has_room_ = true;                           // on each device for what a call is given; once it has not, nothing is divided any more
  bool may_fail_ = false;                          // something that was sent since all was settled
  Way copies_, whole_, owned_;
  std::vector<Owners::Part> parts_;                // of the present call, if it is owned
  std::vector<Share*> given_;                      // to the present call
  std::vector<std::pair<size_t, int64_t>> turned_back_;  // of the present call's results (way.h)
  uint64_t calls_ = 0;
};

}  // namespace forebay::worker
