#include "parallel/row_turn.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include "gang/own_calls.h"

namespace forebay::worker {

namespace {

constexpr int64_t kLongBytes = 8;

c10::ScalarType dtype_of(int64_t item_bytes) { return item_bytes == kLongBytes ? c10::kLong : c10::kByte; }

}  // namespace

RowTurn::RowTurn(Gang& gang, const Device& device, const Rows& rows)
    : gang_(gang),
      device_(device),
      rows_(rows),
      outer_(std::max(rows.from, rows.to)),
      inner_(std::min(rows.from, rows.to)),
      item_bytes_(inner_ / devices() % kLongBytes == 0 ? kLongBytes : 1),
      before_(pieces(rows.from)),
      after_(pieces(rows.to)),
      dense_{before_.sizes, {before_.sizes[1] * before_.sizes[2], before_.sizes[2], 1}, 0},
      sent_(gang.size()),
      received_(gang.size()) {}

RowTurn::Pieces RowTurn::pieces(int64_t period) const {
  const int64_t count = rows_.bytes / outer_, inner_periods = outer_ / devices() / inner_, row = inner_ / devices() / item_bytes_;
  const int64_t outer_step = inner_periods * devices() * row;
  if (period == outer_) return {{count, inner_periods, row}, {outer_step, devices() * row, 1}, row};
  return {{count, inner_periods, row}, {outer_step, row, 1}, inner_periods * row};
}

wire::Argument RowTurn::argument(const Pieces& pieces) const {
  wire::Argument argument = dense(dtype_of(item_bytes_), pieces.sizes);
  argument.geometry.strides = pieces.strides;
  return argument;
}

at::Tensor RowTurn::piece(const c10::Storage& memory, const Pieces& pieces, int place) const {
  auto tensor = at::empty({0}, at::TensorOptions(dtype_of(item_bytes_)).device(device_.where()));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(memory);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(pieces.sizes, pieces.strides, pieces.step * place);
  return tensor;
}

c10::Storage RowTurn::made(const c10::Storage& own) {
  auto fresh = device_.allocate(row_bytes(), /*zeroed=*/false);
  for (int place = 1; place < devices(); ++place) {
    sent_[static_cast<size_t>(place)] = device_.allocate(piece_bytes(), /*zeroed=*/false);
    received_[static_cast<size_t>(place)] = device_.allocate(piece_bytes(), /*zeroed=*/false);
  }
  allocate();
  gang_.sums().meet();
  for (int place = 1; place < devices(); ++place) pack(place);
  for (int place = 1; place < devices(); ++place) piece(sent_[static_cast<size_t>(place)], dense_, 0).copy_(piece(own, before_, place));
  exchange();
  for (int place = 1; place < devices(); ++place) unpack(place);
  for (int place = 1; place < devices(); ++place) piece(fresh, after_, place).copy_(piece(received_[static_cast<size_t>(place)], dense_, 0));
  piece(fresh, after_, 0).copy_(piece(own, before_, 0));
  for (int place = 1; place < devices(); ++place) {
    if (const auto failure = gang_.rank(place).settle()) gang_.rank(place).lose("cannot turn its rows: " + failure->message);
  }
  return fresh;
}

void RowTurn::take() {
  for (int place = 1; place < devices(); ++place) {
    gang_.rank(place).copy(rows_.id, 0, rows_.draft, 0, row_bytes());
    gang_.rank(place).free(rows_.draft);
  }
}

void RowTurn::allocate() {
  for (int place = 1; place < devices(); ++place) {
    Rank& rank = gang_.rank(place);
    try {
      rank.allocate(rows_.draft, row_bytes());
      for (int other = 0; other < devices(); ++other) {
        if (other == place) continue;
        rank.allocate(sent(other), piece_bytes());
        rank.allocate(received(other), piece_bytes());
      }
      GangHomes::demand(rank);
    } catch (const CommandError&) {
      for (int tried = 1; tried <= place; ++tried) {
        gang_.rank(tried).free(rows_.draft);
        free_all(tried);
      }
      throw;
    }
  }
}

void RowTurn::free_all(int place) {
  for (int other = 0; other < devices(); ++other) {
    if (other == place) continue;
    gang_.rank(place).free(sent(other));
    gang_.rank(place).free(received(other));
  }
}

void RowTurn::pack(int place) {
  auto& templates = gang_.templates();
  wire::Argument waits = number_of(wire::Tag::kBool);
  const uint64_t packing = in_place(templates, "copy_", {argument(dense_), argument(before_), waits}), keeping = in_place(templates, "copy_", {argument(after_), argument(before_), waits});
  for (int other = 0; other < devices(); ++other) {
    const auto at = static_cast<uint64_t>(before_.step * other);
    if (other == place) gang_.send(place, keeping, templates.own_plan(keeping), {rows_.draft, static_cast<uint64_t>(after_.step * place), rows_.id, at}, 0);
    else gang_.send(place, packing, templates.own_plan(packing), {sent(other), 0, rows_.id, at}, 0);
  }
}

void RowTurn::unpack(int place) {
  auto& templates = gang_.templates();
  const uint64_t unpacking = in_place(templates, "copy_", {argument(after_), argument(dense_), number_of(wire::Tag::kBool)});
  for (int other = 0; other < devices(); ++other) {
    if (other == place) continue;
    gang_.send(place, unpacking, templates.own_plan(unpacking), {rows_.draft, static_cast<uint64_t>(after_.step * other), received(other), 0}, 0);
  }
  free_all(place);
}

// In one order on all devices, so that none waits for one that waits for it.
void RowTurn::exchange() {
  std::vector<std::pair<int, int>> passes;
  for (int shift = 1; shift < devices(); ++shift) {
    for (int from = 0; from < devices(); ++from) passes.emplace_back(from, (from + shift) % devices());
  }
  for (const auto& [from, to] : passes) gang_.sums().tell({from, to, sent(to), received(from), piece_bytes()});
  gang_.flush();
  for (const auto& [from, to] : passes) {
    if (from == 0 || to == 0) carry_out(from, to);
  }
}

// By this device, which is one of the two.
void RowTurn::carry_out(int from, int to) {
  const bool sends = from == 0;
  const c10::Storage& memory = sends ? sent_[static_cast<size_t>(to)] : received_[static_cast<size_t>(from)];
  const c10::Storage staging = device_.is_host() ? memory : device_.allocate_staging(piece_bytes());
  if (sends && !device_.is_host()) {
    device_.copy(staging, 0, memory, 0, piece_bytes());
    device_.synchronize();
  }
  try {
    gang_.sums().carry_out({from, to, sent(to), received(from), piece_bytes()}, static_cast<uint8_t*>(staging.mutable_data()));
  } catch (const PassEnded& error) {
    throw RankLost(std::string("the devices of this session exchange rows no more: ") + error.what());
  }
  if (sends || device_.is_host()) return;
  device_.copy(memory, 0, staging, 0, piece_bytes());
  device_.synchronize();  // before host memory goes
}

}  // namespace forebay::worker
