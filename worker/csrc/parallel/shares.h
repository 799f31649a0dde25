// Storages that all devices of a gang hold together (placement.h): how they come to do so, and how they are whole again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "device/device.h"
#include "device/placement.h"
#include "device/storage.h"
#include "gang/gang.h"

namespace forebay::worker {

// All of what was sent to the other devices must be carried out before anything here but `made` is called. It may throw CommandError, c10::Error.
class Shares {
 public:
  Shares(Gang& gang, const Device& device, Storages& storages, Layouts& layouts) : gang_(gang), device_(device), storages_(storages), layouts_(layouts) {}

  int64_t devices() const { return static_cast<int64_t>(gang_.size()); }

  // Has every device hold a copy of what lies whole on one. Throws CommandError where a device has no room.
  void spread(const std::vector<uint64_t>& ids);
  // Makes what is still to be made of the devices' parts, on all of them; or on one alone, which keeps it.
  void merge(const std::vector<uint64_t>& ids);
  void merge_at(const std::vector<uint64_t>& ids, int place);
  // Has one device alone keep what all hold copies of. Nothing need be settled before.
  void keep(uint64_t id, int place);
  // A storage that nothing has touched.
  void begin(uint64_t id, const Placement& placement);
  // Has all devices hold it as they did in another gang: `part` gives the bytes of each but this one, which has its own; none: as this one.
  using Part = std::function<const uint8_t*(int place)>;
  void resume(uint64_t id, const Placement& placement, const Part& part);
  // Cuts a storage that lies whole on this device, or on the host, or of which each device has a copy.
  void cut(uint64_t id, int64_t period);
  // Makes it whole on this device alone.
  void gather(uint64_t id);
  // Has every device hold a copy of what lies in rows. Throws CommandError where a device has no room.
  void copy(const std::vector<uint64_t>& ids);
  // Has rows be rows of another period, as can_turn allows: each device sends each other one the piece that becomes its own. Throws CommandError where a
  // device has no room; then nothing has changed.
  void turn(uint64_t id, int64_t period);
  // Makes rows whole on the host, which keeps how they were cut.
  void host_rows(uint64_t id);

  // The bytes of all of it, in memory of `allocate`'s; not to be written to.
  using Allocate = std::function<c10::Storage(int64_t bytes)>;
  c10::Storage whole(uint64_t id, const Allocate& allocate);
  // One device's part of a whole storage, in memory of its own.
  c10::Storage part(const c10::Storage& whole, int64_t bytes, int place, int64_t period) const;

  // All devices have made it, with the bytes that its placement says; `bytes`: of the whole.
  void made(uint64_t id, const Placement& placement, int64_t bytes);

 private:
  static constexpr int64_t kPiecesMax = 4096;  // that a device copies one by one

  void cut_copies(uint64_t id, int64_t period);
  void pad_rows(uint64_t id);
  uint64_t draft_of_parts(uint64_t id, int64_t bytes);
  // The number of no storage.
  uint64_t draft() const;
  // `there`: what one of the other devices holds of it already.
  void hold(uint64_t id, const Placement& placement, bool made, std::unique_ptr<RemoteMemory> there = nullptr);
  // Copies between a whole storage and one with a device's part of it.
  void copy_rows(const c10::Storage& whole, const c10::Storage& part, int64_t bytes, int place, int64_t period, bool to_whole) const;
  c10::Storage fetched(uint64_t id, int place, int64_t bytes);
  void send(uint64_t id, int place, const c10::Storage& memory, int64_t bytes);
  void write(uint64_t id, int place, const c10::Storage& memory, int64_t bytes);
  at::Tensor flat(uint64_t id);
  // Memory of this device with the bytes of storages that lie whole on others.
  std::vector<c10::Storage> fetched(const std::vector<uint64_t>& ids);

  Gang& gang_;
  const Device& device_;
  Storages& storages_;
  Layouts& layouts_;
};

}  // namespace forebay::worker
