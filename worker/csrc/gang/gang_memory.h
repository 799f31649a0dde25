// How many bytes each device of a gang holds, and has room for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/failure.h"
#include "call/plan.h"
#include "device/storage.h"
#include "gang/rank.h"

namespace forebay::worker {

// The connections to the other devices: that of device `place`, from 1, is number `place` - 1.
using Ranks = std::vector<std::unique_ptr<Rank>>;

class GangMemory {
 public:
  GangMemory(const Ranks& others, Storages& storages) : others_(others), storages_(storages) {}

  size_t devices() const { return others_.size() + 1; }
  // The memory of each device, of a limit of all together.
  int64_t part_of(int64_t limit_bytes) const;
  int64_t used(int place) const;
  std::vector<int64_t> used() const;
  int64_t room(int place) const { return part_of(storages_.limit_bytes()) - used(place); }
  // As room, without what operators keep for the time that they run, as far as it can be left free.
  int64_t spare_room(int place, int64_t scratch_bytes) const { return room(place) - std::max(scratch_bytes, part_of(storages_.limit_bytes()) / 8); }
  bool has_room(int place, int64_t bytes) const { return bytes <= room(place); }
  // Whether each device has room for so many bytes more.
  bool all_have_room(int64_t bytes) const;
  int roomiest() const;
  // Throws CommandError where a device has no room for so many bytes more, given for each.
  void demand_room(const std::vector<int64_t>& bytes) const;
  // Throws the CommandError that says so.
  [[noreturn]] void refuse(int64_t bytes) const;
  // What is said of a failure for want of memory, given what a device says.
  std::string out_of_memory_text(const std::string& told) const;

  // Whether what a call's operator keeps while it runs may be more than a device, or one of all, has room for.
  bool may_lack(int place, const Plan& plan) const;
  bool any_may_lack(const Plan& plan) const;
  // What an operator may keep while it runs beside what it is given and makes: as much as its results and the largest of its arguments, as convolutions
  // do, up to a third of a device's memory.
  int64_t scratch_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const;
  // What a call is given and makes, in bytes.
  struct Load {
    std::vector<int64_t> there;  // at each device
    int64_t bytes;               // given
    int64_t fresh_bytes;
    int64_t scratch_bytes;
    // At a device, beside what lies there.
    int64_t needed(int place) const { return fresh_bytes + bytes - there[static_cast<size_t>(place)]; }
  };
  Load load_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const;

  // The most that each device held whenever that was noted, since it was forgotten: what is counted, or so many bytes.
  void note_peaks();
  void note_peaks(const std::vector<int64_t>& bytes);
  void forget_peaks() { peaks_.assign(devices(), 0); }
  const std::vector<int64_t>& peaks() const { return peaks_; }

  // Bytes that the other devices hold beside those that are counted: copies. And bytes of storages that lie on the host.
  int64_t& copied_bytes() { return copied_bytes_; }
  int64_t& hosted_bytes() { return hosted_bytes_; }

 private:
  static constexpr int64_t kTemporaries = 8;  // what operators keep while they run is hardly ever so many times what they are given and make

  // The end of the message where a call finds no room.
  std::string fullest() const;

  const Ranks& others_;
  Storages& storages_;
  int64_t copied_bytes_ = 0;
  int64_t hosted_bytes_ = 0;
  std::vector<int64_t> peaks_;
};

}  // namespace forebay::worker
