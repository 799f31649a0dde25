// Turns a storage's rows from one period into those of another (placement.h): an exchange of each device with each other one, as between a division by the
// tokens of a sequence and one by the heads of attention (DeepSpeed-Ulysses, Jacobs et al. 2023).
//
// The longer period is the outer one, and the other one lies within a device's part of it. What a device holds is [outer periods, inner periods of a part,
// devices, row] if the rows have the outer period, else [outer periods, devices, inner periods of a part, row]: what goes to another device, or came from it,
// is one of `devices`.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <forebay/wire.h>

#include "device/device.h"
#include "gang/gang.h"

namespace forebay::worker {

class RowTurn {
 public:
  static constexpr int64_t kTimesRows = 4;  // of a device's rows, that it must have room for meanwhile

  struct Rows {
    uint64_t id;
    uint64_t draft;  // the number of no storage, as those below it
    int64_t bytes;   // of the whole
    int64_t from;
    int64_t to;
  };
  RowTurn(Gang& gang, const Device& device, const Rows& rows);

  // This device's new rows, made of those that it has; the other devices have theirs as drafts. All must be settled. Throws CommandError, c10::Error where a
  // device has no room: then there are no drafts. Throws RankLost.
  c10::Storage made(const c10::Storage& own);
  // The drafts become what the other devices hold of the storage, which is there.
  void take();

 private:
  // Of a device's rows, what comes from another one or goes there.
  struct Pieces {
    std::vector<int64_t> sizes, strides;
    int64_t step;  // elements from that of one device to that of the next
  };
  Pieces pieces(int64_t period) const;
  wire::Argument argument(const Pieces& pieces) const;
  at::Tensor piece(const c10::Storage& memory, const Pieces& pieces, int place) const;

  int devices() const { return static_cast<int>(gang_.size()); }
  int64_t row_bytes() const { return rows_.bytes / devices(); }
  int64_t piece_bytes() const { return row_bytes() / devices(); }
  // Drafts on each device.
  uint64_t sent(int to) const { return rows_.draft - 1 - static_cast<uint64_t>(to); }
  uint64_t received(int from) const { return sent(devices() + from); }
  void allocate();
  void free_all(int place);
  // On another device.
  void pack(int place);
  void unpack(int place);
  void exchange();
  void carry_out(int from, int to);

  Gang& gang_;
  const Device& device_;
  const Rows rows_;
  const int64_t outer_, inner_, item_bytes_;
  const Pieces before_, after_, dense_;
  std::vector<c10::Storage> sent_, received_;  // of this device, by the other one
};

}  // namespace forebay::worker
