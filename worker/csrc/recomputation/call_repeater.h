// Who carries calls out once more, and what memory there is for that.
#pragma once

#include <cstdint>
#include <vector>

#include <forebay/traces.h>

#include "call/call.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "recomputation/lineage.h"

namespace forebay::worker {

// What memory is wanted for: a call, or an allocation, whose memory comes later.
struct Need {
  int64_t bytes;         // of what is made
  const Plan* plan;      // null: an allocation
  const wire::Words* words;
};

// How much is wanted beside it: what its operator may keep while it runs, too, or as little as can be.
enum class Room { kUsual, kLeast };

class CallRepeater {
 public:
  virtual ~CallRepeater() = default;

  // Bytes that lack, of one device's memory or of all; 0 or less: none do.
  virtual int64_t lacking(const Need& need, Room room) const = 0;
  // The least that is let go at once, by the same measure.
  virtual int64_t least_bytes() const = 0;
  // Whether something is held of it whose end gives memory back that may lack.
  virtual bool gives_room(const Entry& entry) const = 0;
  // Seconds that a call took, as the host's clock has it, or that it is taken for.
  virtual double seconds_of(const Plan& plan, double measured_seconds) const = 0;

  // Carries a call out again, for those of its results alone that are named: their storages hold them then. What it wrote to beside them stays as it is.
  // Throws as Caller::run; then they hold nothing.
  virtual void repeat(const RecordedCall& call, const std::vector<uint64_t>& results) = 0;
  // Calls are to be repeated, and have been: throws c10::OutOfMemoryError, CommandError where one of them has failed.
  virtual void begin() = 0;
  virtual void end() = 0;
  // None of what was repeated since counts.
  virtual void give_up() = 0;
  // Whether the last call that failed may be repeated whatever it writes to: it had not begun.
  virtual bool has_not_begun() const = 0;
  // Whether memory of storages is changed when nothing is written to them, as several devices do.
  virtual bool moves_storages() const = 0;
};

// Of one device.
class DeviceRepeater final : public CallRepeater {
 public:
  DeviceRepeater(const Device& device, Storages& storages) : device_(device), storages_(storages), caller_(device, storages) {}

  int64_t lacking(const Need& need, Room room) const override;
  int64_t least_bytes() const override;
  bool gives_room(const Entry& entry) const override { return static_cast<bool>(entry.memory()); }
  double seconds_of(const Plan& plan, double measured_seconds) const override;
  void repeat(const RecordedCall& call, const std::vector<uint64_t>& results) override;
  void begin() override {}
  void end() override {}
  void give_up() override {}
  bool has_not_begun() const override { return caller_.lacks_memory(); }
  bool moves_storages() const override { return false; }

 private:
  const Device& device_;
  Storages& storages_;
  Caller caller_;  // of what is made again
};

// As a device works on calls side by side, the host's clock does not tell how long one takes: to weigh one against another.
double estimated_seconds(const Plan& plan);

}  // namespace forebay::worker
