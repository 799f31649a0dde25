#include "device/placement.h"

#include <algorithm>

namespace forebay::worker {

namespace {

// The dimension whose steps reach from the beginning of a period to its end, or to that of a later one.
std::optional<size_t> cut_dimension(const wire::Geometry& view, int64_t item_bytes, int64_t period, int64_t devices) {
  for (size_t dim = 0; dim < view.sizes.size(); ++dim) {
    const int64_t step = view.strides[dim] * item_bytes;
    if (step == 0 || period % step != 0) continue;
    const int64_t rows = period / step;
    if (rows >= devices && rows % devices == 0 && view.sizes[dim] % rows == 0) return dim;
  }
  return std::nullopt;
}

}  // namespace

std::optional<LocalView> local_view(const wire::Geometry& whole, int64_t item_bytes, int64_t period, int64_t devices) {
  const auto cut = cut_dimension(whole, item_bytes, period, devices);
  if (!cut) return std::nullopt;
  const int64_t row_bytes = whole.strides[*cut] * item_bytes;
  LocalView local{whole, *cut, period / row_bytes, 0};
  int64_t extent = item_bytes;  // within a row
  for (size_t dim = 0; dim < whole.sizes.size(); ++dim) {
    const int64_t step = whole.strides[dim] * item_bytes;
    if (whole.sizes[dim] == 0) return std::nullopt;
    if (dim == *cut || whole.sizes[dim] == 1) continue;
    if (step < period) {
      extent += (whole.sizes[dim] - 1) * step;
    } else {
      if (step % period != 0) return std::nullopt;
      local.geometry.strides[dim] /= devices;
    }
  }
  if (extent > row_bytes) return std::nullopt;
  local.geometry.sizes[*cut] /= devices;
  local.room = row_bytes - extent;
  return local;
}

std::optional<int64_t> local_offset(int64_t offset, int64_t period, int64_t room, int64_t devices) {
  const int64_t in_row = offset % period;
  if (in_row > room) return std::nullopt;
  return offset / period * (period / devices) + in_row;
}

bool can_turn(int64_t from, int64_t to, int64_t devices) {
  const int64_t outer = std::max(from, to), inner = std::min(from, to);
  return inner > 0 && outer % devices == 0 && inner % devices == 0 && (outer / devices) % inner == 0;
}

int64_t period_of(const wire::Geometry& whole, size_t dimension, int64_t rows, int64_t item_bytes) {
  return whole.strides[dimension] * rows * item_bytes;
}

}  // namespace forebay::worker
