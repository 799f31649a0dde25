// Has all devices of a gang carry calls out once more that they have carried out, for what was let go where memory is short.
//
// The first device's worker decides, by bytes that it counts and by what came, never by times or by what a device says: so two runs let go of the same.
// A storage that is let go is gone from all devices. The call that made it is carried out as one that comes from the client, by the same words and the
// same seeds, and however what it is given lies by then.
#pragma once

#include <cstdint>
#include <vector>

#include "call/plan.h"
#include "device/storage.h"
#include "parallel/gang_caller.h"
#include "recomputation/call_repeater.h"

namespace forebay::worker {

class GangRepeater final : public CallRepeater {
 public:
  GangRepeater(GangCaller& gang, Storages& storages) : gang_(gang), storages_(storages) {}

  int64_t lacking(const Need& need, Room room) const override;
  int64_t least_bytes() const override;
  bool gives_room(const Entry& entry) const override;
  double seconds_of(const Plan& plan, double) const override { return estimated_seconds(plan); }
  void repeat(const RecordedCall& call, const std::vector<uint64_t>& results) override;
  void begin() override;
  void end() override { gang_.end_repeats(); }
  void give_up() override { gang_.give_up_repeats(); }
  bool has_not_begun() const override { return false; }
  bool moves_storages() const override { return true; }

 private:
  // Of the session's limit; and of the device that lacks most, or of the one that lacks least where one alone carries the call out.
  int64_t lacking_of_all(int64_t bytes) const;
  int64_t lacking_of_each(const Plan& plan, const std::vector<uint64_t>& ids, Room room) const;
  int64_t lacking_of_one(const Plan& plan, const std::vector<uint64_t>& ids, Room room) const;

  GangCaller& gang_;
  Storages& storages_;
};

}  // namespace forebay::worker
