#include "shares.h"

#include <ATen/ops/from_blob.h>

#include "bulk_copy.h"

namespace forebay::worker {

namespace {

constexpr int64_t kBucketBytes = int64_t{64} << 20;  // of sums that are made together

}  // namespace

void Shares::hold(uint64_t id, const Placement& placement, bool made) {
  Entry& entry = storages_.at(id);
  auto share = std::make_unique<Share>(placement);
  const int64_t bytes = placement.bytes_of(entry.bytes(), devices());
  for (int place = 1; place < devices(); ++place) share->others.push_back(std::make_unique<RankMemory>(gang_.rank(place), id, bytes, made));
  if (placement.sharing != Sharing::kRows) share->count_copies(gang_.copied_bytes(), entry.bytes() * (devices() - 1));
  entry.share_as(std::move(share));
}

void Shares::made(uint64_t id, const Placement& placement, int64_t bytes) {
  storages_.count_as(id, bytes);
  hold(id, placement, /*made=*/true);
}

void Shares::copy(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.cause()) return;
  if (entry.share() != nullptr) {
    if (entry.share()->placement.sharing == Sharing::kCopies) return;
    if (entry.share()->placement.sharing != Sharing::kRows) return sum({id});
  }
  gather(id);
  gang_.demand_room(entry.bytes());
  hold(id, {Sharing::kCopies, 0, 0}, /*made=*/false);
  try {
    for (int place = 1; entry.has_memory() && place < devices(); ++place) send(id, place, entry.memory(), entry.bytes());
  } catch (...) {
    entry.share_as(nullptr);
    throw;
  }
}

void Shares::begin(uint64_t id, const Placement& placement) {
  Entry& entry = storages_.at(id);
  auto own = device_.allocate(placement.bytes_of(entry.bytes(), devices()), /*zeroed=*/true);
  hold(id, placement, /*made=*/false);
  entry.exchange(own);
}

void Shares::cut(uint64_t id, int64_t period) {
  Entry& entry = storages_.at(id);
  const c10::Storage whole = entry.touch(device_);
  const int64_t bytes = entry.bytes() / devices();
  auto own = part(whole, entry.bytes(), 0, period);
  hold(id, {Sharing::kRows, period, 0}, /*made=*/false);
  try {
    for (int place = 1; place < devices(); ++place) send(id, place, part(whole, entry.bytes(), place, period), bytes);
  } catch (...) {
    entry.share_as(nullptr);
    throw;
  }
  entry.exchange(own);
}

void Shares::gather(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.share() == nullptr) return gang_.gather({id}, 0);
  entry.replace(whole(id, [&](int64_t bytes) { return device_.allocate(bytes, /*zeroed=*/false); }));
}

c10::Storage Shares::whole(uint64_t id, const Allocate& allocate) {
  Entry& entry = storages_.at(id);
  if (entry.share() == nullptr || entry.share()->placement.sharing == Sharing::kCopies) return entry.touch(device_);
  if (entry.share()->placement.sharing != Sharing::kRows) {
    sum({id});
    return entry.memory();
  }
  const int64_t bytes = entry.bytes() / devices(), period = entry.share()->placement.period;
  auto whole = allocate(entry.bytes());
  copy_rows(whole, entry.memory(), entry.bytes(), 0, period, /*to_whole=*/true);
  for (int place = 1; place < devices(); ++place) copy_rows(whole, fetched(id, place, bytes), entry.bytes(), place, period, /*to_whole=*/true);
  return whole;
}

c10::Storage Shares::part(const c10::Storage& whole, int64_t bytes, int place, int64_t period) const {
  auto part = device_.allocate(bytes / devices(), /*zeroed=*/false);
  copy_rows(whole, part, bytes, place, period, /*to_whole=*/false);
  return part;
}

void Shares::copy_rows(const c10::Storage& whole, const c10::Storage& part, int64_t bytes, int place, int64_t period, bool to_whole) const {
  const int64_t row = period / devices();
  for (int64_t begin = 0, at = 0; begin < bytes; begin += period, at += row) {
    const int64_t there = begin + place * row;
    if (to_whole) device_.copy(whole, there, part, at, row);
    else device_.copy(part, at, whole, there, row);
  }
  device_.synchronize();  // before host memory goes
}

c10::Storage Shares::fetched(uint64_t id, int place, int64_t bytes) {
  auto memory = device_.allocate_parked(bytes);
  gang_.rank(place).read({{id, 0, bytes, static_cast<uint8_t*>(memory.mutable_data())}});
  return memory;
}

void Shares::send(uint64_t id, int place, const c10::Storage& memory, int64_t bytes) {
  write(id, place, memory, bytes);
  gang_.demand(gang_.rank(place));
}

void Shares::write(uint64_t id, int place, const c10::Storage& memory, int64_t bytes) {
  Rank& target = gang_.rank(place);
  BulkCopy copy(device_, bytes);
  copy.fetch(memory, [&](int64_t offset, const uint8_t* data, int64_t size) { target.write(id, offset, data, size); });
  copy.finish();
}

void Shares::sum(const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> bucket;
  int64_t bytes = 0;
  for (const uint64_t id : ids) {
    bucket.push_back(id);
    bytes += storages_.at(id).bytes();
    if (bytes < kBucketBytes && id != ids.back()) continue;
    sum_together(bucket);
    bucket.clear();
    bytes = 0;
  }
}

// Each device is asked for all of them at once, and told all at once.
void Shares::sum_together(const std::vector<uint64_t>& ids) {
  for (int place = 1; place < devices(); ++place) {
    std::vector<c10::Storage> parts;
    std::vector<Rank::Range> ranges;
    for (const uint64_t id : ids) {
      const int64_t bytes = storages_.at(id).bytes();
      parts.push_back(device_.allocate_parked(bytes));
      ranges.push_back({id, 0, bytes, static_cast<uint8_t*>(parts.back().mutable_data())});
    }
    gang_.rank(place).read(ranges);
    for (size_t index = 0; index < ids.size(); ++index) {
      at::Tensor sum = flat(ids[index]);
      sum.add_(at::from_blob(ranges[index].target, sum.sizes(), sum.options().device(at::kCPU)).to(device_.where()));
    }
    device_.synchronize();  // before the parts go
  }
  for (const uint64_t id : ids) {
    if (storages_.at(id).share()->placement.sharing == Sharing::kMean) flat(id).div_(devices());
  }
  for (int place = 1; place < devices(); ++place) {
    for (const uint64_t id : ids) write(id, place, storages_.at(id).memory(), storages_.at(id).bytes());
    gang_.rank(place).flush();
  }
  for (int place = 1; place < devices(); ++place) gang_.demand(gang_.rank(place));
  for (const uint64_t id : ids) storages_.at(id).share()->placement = {Sharing::kCopies, 0, 0};
}

// All elements of a sum or mean.
at::Tensor Shares::flat(uint64_t id) {
  Entry& entry = storages_.at(id);
  const uint8_t dtype = entry.share()->placement.dtype;
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(dtype)));
  return entry.view(device_, *layouts_.intern({dtype, 0, {entry.bytes() / item_bytes}, {1}}), 0);
}

}  // namespace forebay::worker
