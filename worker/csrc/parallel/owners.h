// Which device keeps what not every device needs all the time, while a batch is divided among the devices of a gang (data_parallel.h).
//
// An optimizer's states, and what it updates, are kept by one device each, which alone updates them: so the devices together hold them once, and
// each does its part of the update (Rajbhandari et al., "ZeRO", SC 2020). Where memory is short, each copy that was not used for long is kept by one
// device, too. What is kept by one comes back as a copy on all when a call on rows uses it next, with others that will be used so.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "call/call.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/gang.h"
#include "parallel/shares.h"

namespace forebay::worker {

class Owners {
 public:
  static constexpr int64_t kOwnedBytes = int64_t{1} << 20;  // lists of fewer bytes are updated by every device, and what lies on one device is copied

  Owners(Gang& gang, Storages& storages, Caller& caller, Shares& shares);

  // A call, or the items of one that one device updates, and that device. What a device has no room for at a time is updated in several rounds.
  struct Part {
    int place;
    GangTemplates::Part call;
    size_t round = 0;
  };
  // Whether owners may carry out, each its items, a call that writes to nothing but items of its lists, and is given enough of them.
  bool is_owned_together(uint64_t number, const Plan& plan, const wire::Words& words) const;
  // How a call is carried out by the owners of what it is given; none where each device, or one for all, is to carry it out. Nothing may lie in rows.
  std::vector<Part> parts_of(uint64_t number, Plan& plan, const wire::Words& words);
  // Whether nothing must be moved before, nor between rounds.
  bool are_ready(const std::vector<Part>& parts) const;
  // For the first round. All must be settled. Throws CommandError.
  void prepare(std::vector<Part>& parts) { prepare_round(of_round(parts, 0)); }
  // `settle`: waits until all that was sent is carried out; false where something failed. Throws as Caller::run, when the other devices have been sent
  // their parts. Where one owner alone may lack memory for what an operator keeps while it runs, it tries again when it keeps nothing but what the call is
  // given.
  void carry_out(std::vector<Part>& parts, uint64_t sequence, const std::function<bool()>& settle);

  // Has each of these that one device keeps be a copy on all, and more that calls on rows have used, as there is room. All must be settled. Throws CommandError.
  void copy(const std::vector<uint64_t>& ids);
  // Whether each device, or one, has room for so many bytes more and for what operators keep while they run.
  bool have_room(int64_t bytes, int64_t scratch_bytes = 0) const { return gang_.memory().all_have_room(bytes + std::max(spare_bytes(), scratch_bytes)); }
  bool has_room(int place, int64_t bytes) const { return gang_.memory().has_room(place, bytes + spare_bytes()); }
  // Whether each device has room for so many bytes more, and as far as can be for `scratch_bytes` beside (Gang::scratch_of), once copies but these were left to one device each, those first that were not used for
  // the longest time, and what full devices keep was moved to others. All must be settled. Throws CommandError.
  // `there`: how many of the bytes lie at each device already.
  bool make_room(int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes = 0, const std::vector<int64_t>& there = {});
  // As make_room, of one device. The others are left room for `left_bytes`.
  bool make_room_at(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t left_bytes = 0);

  // Whether one device could have room for so many bytes, if it kept nothing else.
  bool may_have_room(int64_t bytes) const { return bytes <= gang_.memory().part_of(storages_.limit_bytes()) - spare_bytes(); }
  // As make_room, for each device's rows of so many bytes while they come.
  void make_room_for_rows(int64_t bytes, const std::vector<uint64_t>& but) { make_room(2 * bytes / devices(), but); }
  // What one device keeps goes to the host. All must be settled.
  void bring_to_host(uint64_t id) { gang_.homes().bring(id, kOnHost); }

  // The period of the rows in which a copy rests where memory is short; 0 of one that one device keeps then.
  void rest_by(std::function<int64_t(uint64_t id)> period_of) { period_of_ = std::move(period_of); }
  // Leaves copies and sums but these to one device each until there is room; and rows to the host, the largest first.
  void leave_copies(const std::function<bool()>& has_room, const std::vector<uint64_t>& but);
  void leave_rows(const std::function<bool()>& has_room, const std::vector<uint64_t>& but);

  // What calls on rows used as copies, of what one device keeps.
  std::set<uint64_t>& lent() { return lent_; }

 private:
  static constexpr int64_t kSpareShare = 16;  // of a device's memory

  using Round = std::vector<Part*>;

  static Round of_round(std::vector<Part>& parts, size_t round);
  std::vector<Part> parts_of_items(uint64_t number, const Plan& plan, const wire::Words& words);
  std::vector<int> places_of(const std::vector<std::vector<uint64_t>>& items) const;
  // What parts are given; and what several of them are.
  static std::vector<uint64_t> given_to(const std::vector<const Part*>& parts);
  static std::vector<uint64_t> shared_by(const std::vector<const Part*>& parts);
  void prepare_round(const Round& parts);
  void carry_out_round(const Round& parts, uint64_t sequence);
  void carry_out_where_room(Part& part, uint64_t sequence);
  // Leaves the copies that a part writes to to its device.
  void keep_written(const Part& part);
  // Leaves a copy to one device.
  void keep(uint64_t id, int place);
  int64_t spare_bytes() const { return gang_.memory().part_of(storages_.limit_bytes()) / kSpareShare; }
  int64_t devices() const { return static_cast<int64_t>(gang_.size()); }

  Gang& gang_;
  Storages& storages_;
  Caller& caller_;
  Shares& shares_;
  std::function<int64_t(uint64_t)> period_of_;
  std::set<uint64_t> lent_;  // kept by one device, and used as copies by calls on rows; some may be gone
};

}  // namespace forebay::worker
