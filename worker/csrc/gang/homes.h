// Where the storages of a gang lie, and how they get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "device/bulk_copy.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/gang_memory.h"
#include "gang/rank.h"

namespace forebay::worker {

// Where storages of a session begin. kFill: where the first device has room, in steps of a quarter of each device's memory, so that what is made
// together lies together and every device keeps room for what comes of it. kScatter: on each device in turn, and calls likewise, to try what
// moves them. kDataParallel: as kFill, until a batch of rows comes again and again; then every device has a copy of what calls are given, and
// its part of the rows (data_parallel.h), or what repeats is carried out as a pipeline (pipeline_executor.h) where that is quicker. kRows: likewise,
// and nothing is a pipeline. kPipeline: as kDataParallel, and what can be carried out as a pipeline is
// one, whatever it costs, to try that. kMesh: as kPipeline, of as few stages as can be, with several devices each.
enum class Homes { kFill, kScatter, kRows, kDataParallel, kPipeline, kMesh };
inline bool are_divided(Homes homes) { return homes != Homes::kFill && homes != Homes::kScatter; }

// Each storage that is not held by all devices together lies whole on one device, its home, or on the host of the first one. Devices are numbered
// from 0, which is this one.
class GangHomes {
 public:
  GangHomes(const Ranks& others, Homes policy, const Device& device, Storages& storages, GangMemory& memory)
      : others_(others), policy_(policy), device_(device), storages_(storages), memory_(memory) {}

  // Where a call is to be carried out that is given such storages and makes so many bytes more. None if no device has room for it as it is: then,
  // once all is settled, clear_place makes room. Throws CommandError if that cannot be.
  std::optional<int> place_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  int clear_place(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // As clear_place, of a device.
  void clear(int place, const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // Moves storages but these from a device to others and the host, the largest first, until it has room for so many bytes and, as far as can be, for so
  // many more that an operator may keep while it runs. The other devices are left room for `left_bytes`. All must be settled.
  void relieve(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes = 0, int64_t left_bytes = 0);
  // Moves all storages but these from a device to the host. All must be settled.
  void empty(int place, const std::vector<uint64_t>& but);
  // How devices leave what they hold together, but these, until there is room: copies to one of them, and rows to the host.
  using Leave = std::function<void(const std::function<bool()>& has_room, const std::vector<uint64_t>& but)>;
  void leave_by(Leave copies, Leave rows) {
    leave_copies_ = std::move(copies);
    leave_rows_ = std::move(rows);
  }

  // Whether these storages lie on a device, but for those that hold nothing yet. If not, all must be settled before they are gathered there.
  bool is_gathered(const std::vector<uint64_t>& ids, int place) const;
  // Throws CommandError; then they lie where they lay, or where they were wanted.
  void gather(const std::vector<uint64_t>& ids, int place);
  // As gather, of one.
  void bring(uint64_t id, int place);
  // Gives a storage that holds nothing a home.
  void give_home(uint64_t id);
  // Whole, in memory of the host's. `period`: as HostMemory has it.
  void keep_on_host(uint64_t id, c10::Storage memory, int64_t period);
  // The items of lists, put together by where most bytes of each lie; no more together than a device has room for at any time.
  // `bytes`: of each item at each device.
  std::vector<std::vector<size_t>> divided(const std::vector<std::vector<int64_t>>& bytes) const;

  // Bytes of a storage that lies on another device or the host. All must be settled. Throw CommandError.
  void read(uint64_t id, const Entry& entry, int64_t offset, int64_t bytes, uint8_t* target);
  void write(uint64_t id, const Entry& entry, int64_t offset, const uint8_t* data, int64_t bytes);
  void copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes);
  // Throws CommandError if something that was sent there failed.
  static void demand(Rank& rank);

  // Parking and back: all storages' bytes come to this process's memory, beside the device's; and get homes again.
  void fetch_all();
  // Of one that came, all of it in memory of the host's.
  c10::Storage on_host(uint64_t id);
  // One that came, and is in this process's memory, goes to another device.
  void send_away(uint64_t id, int place);
  void spread();

 private:
  Rank& rank(int place) { return *others_[static_cast<size_t>(place) - 1]; }
  int best_place(const GangMemory::Load& load);
  std::vector<uint64_t> movable(int place, const std::vector<uint64_t>& but);
  void move(uint64_t id, int place);
  void bring_to_host(uint64_t id);
  int home_for(int64_t bytes, const std::vector<int64_t>& used);
  int home_with_room(int64_t bytes, const std::vector<int64_t>& used);
  void for_each_piece(uint64_t id, const BulkCopy::Take& take);
  // As relieve. Throws CommandError if there is no room even so.
  void make_room(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes);

  const Ranks& others_;
  Homes policy_;
  int turn_ = 0;            // kScatter
  size_t hosted_turn_ = 0;  // kScatter
  const Device& device_;
  Storages& storages_;
  GangMemory& memory_;
  Leave leave_copies_, leave_rows_;
};

}  // namespace forebay::worker
