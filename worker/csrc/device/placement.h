// What each device of a gang holds of a storage that they hold together, and what of a view of it lies there. Knows no device.
#pragma once

#include <cstdint>
#include <optional>

#include <forebay/wire.h>

namespace forebay::worker {

// kCopies: all of it. kRows: one of as many equal parts of each `period` of bytes as there are devices, in their order. kSum, kMean, kMax, kMin: as
// many bytes as it has, whose sum, mean, maximum or minimum over the devices, element by element, is what it holds.
enum class Sharing : uint8_t { kCopies, kRows, kSum, kMean, kMax, kMin };

struct Placement {
  Sharing sharing = Sharing::kCopies;
  int64_t period = 0;  // kRows
  uint8_t dtype = 0;   // of all elements; 0 for kCopies and kRows

  bool operator==(const Placement& other) const { return sharing == other.sharing && period == other.period && dtype == other.dtype; }
  // Whether it is still to be made of the devices' parts.
  bool is_partial() const { return sharing != Sharing::kCopies && sharing != Sharing::kRows; }
  // Of so many, on each of so many devices.
  int64_t bytes_of(int64_t bytes, int64_t devices) const { return sharing == Sharing::kRows ? bytes / devices : bytes; }
};

// The part of a view of a storage in rows that lies on one device, be it the first or another.
struct LocalView {
  wire::Geometry geometry;
  size_t dimension = 0;  // the one that is cut
  int64_t rows = 0;      // of the whole, in that dimension and one period: all of its size, or less where it runs through several periods
  int64_t room = 0;      // bytes by which the beginning of a view may lie behind that of its row
};

// None where the view does not cover whole rows, or its sizes cannot be cut. `item_bytes`: of one of its elements.
std::optional<LocalView> local_view(const wire::Geometry& whole, int64_t item_bytes, int64_t period, int64_t devices);

// Where a view begins that begins at `offset` of the whole storage, in bytes; none where a view with so much room does not lie in whole rows.
std::optional<int64_t> local_offset(int64_t offset, int64_t period, int64_t room, int64_t devices);

// Whether rows of one period lie whole within a device's rows of the other one, so that they can be turned from one into the other piece by piece.
bool can_turn(int64_t from, int64_t to, int64_t devices);

// The period of what has such strides, and so many rows of a dimension in a period.
int64_t period_of(const wire::Geometry& whole, size_t dimension, int64_t rows, int64_t item_bytes);

}  // namespace forebay::worker
