#include "parallel/shares.h"

#include <limits>

#include "device/bulk_copy.h"
#include "parallel/row_turn.h"

namespace forebay::worker {

namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kBucketBytes = int64_t{64} << 20;  // of what is merged together

}  // namespace

void Shares::hold(uint64_t id, const Placement& placement, bool made, std::unique_ptr<RemoteMemory> there) {
  Entry& entry = storages_.at(id);
  auto share = std::make_unique<Share>(placement);
  const int64_t bytes = placement.bytes_of(entry.bytes(), devices());
  for (int place = 1; place < devices(); ++place) {
    if (there && there->place() == place) share->others.push_back(std::move(there));
    else share->others.push_back(std::make_unique<RankMemory>(gang_.rank(place), id, bytes, made));
  }
  if (placement.sharing != Sharing::kRows) share->count_copies(gang_.memory().copied_bytes(), entry.bytes() * (devices() - 1));
  entry.share_as(std::move(share));
}

void Shares::made(uint64_t id, const Placement& placement, int64_t bytes) {
  storages_.count_as(id, bytes);
  hold(id, placement, /*made=*/true);
}

void Shares::begin(uint64_t id, const Placement& placement) {
  Entry& entry = storages_.at(id);
  auto own = device_.allocate(placement.bytes_of(entry.bytes(), devices()), /*zeroed=*/true);
  hold(id, placement, /*made=*/false);
  entry.exchange(own);
}

void Shares::resume(uint64_t id, const Placement& placement, const Part& part) {
  Entry& entry = storages_.at(id);
  entry.touch(device_);
  hold(id, placement, /*made=*/false);
  for (int place = 1; place < devices(); ++place) {
    const uint8_t* bytes = part(place);
    if (bytes == nullptr) write(id, place, entry.memory(), entry.bytes());
    else gang_.rank(place).write(id, 0, bytes, entry.bytes());
    GangHomes::demand(gang_.rank(place));
  }
}

// Each device keeps its part of what it has. Where one has no room for that, all keep their copies.
void Shares::cut_copies(uint64_t id, int64_t period) {
  Entry& entry = storages_.at(id);
  const int64_t bytes = entry.bytes(), part_bytes = bytes / devices(), row = period / devices();
  const uint64_t draft = this->draft();
  auto own = part(entry.memory(), bytes, 0, period);
  for (int place = 1; place < devices(); ++place) {
    Rank& rank = gang_.rank(place);
    try {
      rank.allocate(draft, part_bytes);
      for (int64_t begin = 0, at = 0; begin < bytes; begin += period, at += row) rank.copy(draft, at, id, begin + place * row, row);
      GangHomes::demand(rank);
    } catch (const CommandError&) {
      for (int tried = 1; tried <= place; ++tried) gang_.rank(tried).free(draft);
      throw;
    }
  }
  entry.share_as(nullptr);  // and the copies are freed
  hold(id, {Sharing::kRows, period, 0}, /*made=*/false);
  try {
    for (int place = 1; place < devices(); ++place) {
      gang_.rank(place).copy(id, 0, draft, 0, part_bytes);
      gang_.rank(place).free(draft);
      GangHomes::demand(gang_.rank(place));
    }
  } catch (...) {  // this device still has all of it
    entry.share_as(nullptr);
    throw;
  }
  entry.exchange(own);
}

uint64_t Shares::draft() const {
  uint64_t id = std::numeric_limits<uint64_t>::max();
  while (storages_.has(id)) --id;
  return id;
}

void Shares::cut(uint64_t id, int64_t period) {
  if (const Share* share = storages_.at(id).share(); share != nullptr) {
    const bool is_copies = share->placement.sharing == Sharing::kCopies;
    if (is_copies && storages_.at(id).bytes() / period <= kPiecesMax) return cut_copies(id, period);
    gather(id);
  }
  Entry& entry = storages_.at(id);
  const c10::Storage whole = entry.home() == kOnHost ? entry.on_host()->memory() : entry.touch(device_);
  const int64_t bytes = entry.bytes() / devices();
  auto own = part(whole, entry.bytes(), 0, period);
  hold(id, {Sharing::kRows, period, 0}, /*made=*/false);
  try {
    for (int place = 1; place < devices(); ++place) send(id, place, part(whole, entry.bytes(), place, period), bytes);
  } catch (...) {
    entry.share_as(nullptr);
    throw;
  }
  entry.leave_home();
  entry.exchange(own);
}

void Shares::gather(uint64_t id) {
  Entry& entry = storages_.at(id);
  if (entry.share() == nullptr) return gang_.homes().gather({id}, 0);
  entry.replace(whole(id, [&](int64_t bytes) { return device_.allocate(bytes, /*zeroed=*/false); }));
}

// Each device has its rows in place, and zeros elsewhere: sums of integers are then the bytes of all.
void Shares::copy(const std::vector<uint64_t>& ids) {
  std::vector<uint64_t> padded;
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (entry.bytes() / entry.share()->placement.period <= kPiecesMax) {
      pad_rows(id);
      padded.push_back(id);
    } else {
      gather(id);
      spread({id});
    }
  }
  merge(padded);
}

void Shares::pad_rows(uint64_t id) {
  Entry& entry = storages_.at(id);
  const Placement rows = entry.share()->placement;
  const int64_t bytes = entry.bytes(), part_bytes = bytes / devices(), row = rows.period / devices();
  auto own = entry.memory(), whole = device_.allocate(bytes, /*zeroed=*/true);
  copy_rows(whole, own, bytes, 0, rows.period, /*to_whole=*/true);
  const uint64_t draft = draft_of_parts(id, part_bytes);
  entry.share_as(nullptr);  // and the rows are freed, but for the drafts
  hold(id, {Sharing::kSum, 0, static_cast<uint8_t>(bytes % kWordBytes == 0 ? c10::kLong : c10::kByte)}, /*made=*/false);
  entry.exchange(whole);
  try {
    for (int place = 1; place < devices(); ++place) {
      for (int64_t begin = 0, at = 0; begin < bytes; begin += rows.period, at += row) gang_.rank(place).copy(id, begin + place * row, draft, at, row);
      GangHomes::demand(gang_.rank(place));
    }
  } catch (const CommandError&) {
    entry.share_as(nullptr);
    hold(id, rows, /*made=*/false);
    entry.exchange(own);
    for (int place = 1; place < devices(); ++place) {
      gang_.rank(place).copy(id, 0, draft, 0, part_bytes);
      gang_.rank(place).free(draft);
      if (const auto failure = gang_.rank(place).settle()) gang_.rank(place).lose("has no room any more for what it held: " + failure->message);
    }
    throw;
  }
  for (int place = 1; place < devices(); ++place) gang_.rank(place).free(draft);
}

// The number of copies of what the other devices hold of it. Throws CommandError where one has no room; then there are none.
uint64_t Shares::draft_of_parts(uint64_t id, int64_t bytes) {
  const uint64_t draft = this->draft();
  for (int place = 1; place < devices(); ++place) {
    try {
      gang_.rank(place).allocate(draft, bytes);
      gang_.rank(place).copy(draft, 0, id, 0, bytes);
      GangHomes::demand(gang_.rank(place));
    } catch (const CommandError&) {
      for (int tried = 1; tried <= place; ++tried) gang_.rank(tried).free(draft);
      throw;
    }
  }
  return draft;
}

void Shares::turn(uint64_t id, int64_t period) {
  Entry& entry = storages_.at(id);
  const Placement before = entry.share()->placement;
  RowTurn turn(gang_, device_, {id, draft(), entry.bytes(), before.period, period});
  auto own = turn.made(entry.memory());
  const Placement after{Sharing::kRows, period, 0};
  entry.share_as(nullptr);  // and the rows before are freed
  hold(id, after, /*made=*/false);
  entry.exchange(own);
  turn.take();
  for (int place = 1; place < devices(); ++place) {
    if (const auto failure = gang_.rank(place).settle()) gang_.rank(place).lose("has no room any more for what it held: " + failure->message);
  }
}

void Shares::host_rows(uint64_t id) {
  const int64_t period = storages_.at(id).share()->placement.period;
  gang_.homes().keep_on_host(id, whole(id, [&](int64_t bytes) { return device_.allocate_parked(bytes); }), period);
}

c10::Storage Shares::whole(uint64_t id, const Allocate& allocate) {
  Entry& entry = storages_.at(id);
  if (entry.share() == nullptr || entry.share()->placement.sharing == Sharing::kCopies) return entry.touch(device_);
  if (entry.share()->placement.sharing != Sharing::kRows) {
    merge({id});
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
  GangHomes::demand(gang_.rank(place));
}

void Shares::write(uint64_t id, int place, const c10::Storage& memory, int64_t bytes) {
  Rank& target = gang_.rank(place);
  BulkCopy copy(device_, storages_.staging(), bytes);
  copy.fetch(memory, [&](int64_t offset, const uint8_t* data, int64_t size) { target.write(id, offset, data, size); });
  copy.finish();
}

void Shares::merge(const std::vector<uint64_t>& ids) {
  std::vector<DeviceSums::Parts> bucket;
  int64_t bytes = 0;
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    bucket.push_back({id, entry.share()->placement.sharing, flat(id)});
    bytes += entry.bytes();
    if (bytes < kBucketBytes && id != ids.back()) continue;
    gang_.sums().make(bucket);
    for (const auto& made : bucket) storages_.at(made.id).share()->placement = {Sharing::kCopies, 0, 0};
    bucket.clear();
    bytes = 0;
  }
}

void Shares::merge_at(const std::vector<uint64_t>& ids, int place) {
  merge(ids);
  for (const uint64_t id : ids) keep(id, place);
}

void Shares::keep(uint64_t id, int place) {
  Entry& entry = storages_.at(id);
  if (place == 0) {
    entry.share_as(nullptr);
  } else {
    entry.live_elsewhere(std::move(entry.share()->others[static_cast<size_t>(place) - 1]));
  }
  entry.keep();
}

std::vector<c10::Storage> Shares::fetched(const std::vector<uint64_t>& ids) {
  std::vector<c10::Storage> memory, on_host;
  std::vector<std::vector<Rank::Range>> ranges(static_cast<size_t>(devices()));
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    const int64_t bytes = entry.bytes();
    memory.push_back(entry.home() == 0 ? entry.memory() : device_.allocate(bytes, /*zeroed=*/false));
    if (entry.home() == kOnHost) on_host.push_back(entry.on_host()->memory());
    else on_host.push_back(entry.home() == 0 || device_.is_host() ? memory.back() : device_.allocate_parked(bytes));
    if (entry.home() > 0) ranges[static_cast<size_t>(entry.home())].push_back({id, 0, bytes, static_cast<uint8_t*>(on_host.back().mutable_data())});
  }
  for (int place = 1; place < devices(); ++place) gang_.rank(place).read(ranges[static_cast<size_t>(place)]);
  for (size_t index = 0; index < ids.size(); ++index) {
    if (!on_host[index].is_alias_of(memory[index])) device_.copy(memory[index], 0, on_host[index], 0, storages_.at(ids[index]).bytes());
  }
  device_.synchronize();  // before host memory goes
  return memory;
}

void Shares::spread(const std::vector<uint64_t>& ids) {
  if (ids.empty()) return;
  std::vector<int64_t> bytes(static_cast<size_t>(devices()), 0);  // that come to each device
  for (const uint64_t id : ids) {
    for (int place = 0; place < devices(); ++place) bytes[static_cast<size_t>(place)] += storages_.at(id).home() == place ? 0 : storages_.at(id).bytes();
  }
  gang_.memory().demand_room(bytes);
  auto memory = fetched(ids);
  for (size_t index = 0; index < ids.size(); ++index) {
    Entry& entry = storages_.at(ids[index]);
    const int home = entry.home();
    auto there = entry.leave_home();
    entry.exchange(memory[index]);
    hold(ids[index], {Sharing::kCopies, 0, 0}, /*made=*/false, std::move(there));
    for (int place = 1; place < devices(); ++place) {
      if (place != home) write(ids[index], place, entry.memory(), entry.bytes());
    }
  }
  try {
    gang_.flush();
    for (int place = 1; place < devices(); ++place) GangHomes::demand(gang_.rank(place));
  } catch (const CommandError&) {
    for (const uint64_t id : ids) storages_.at(id).share_as(nullptr);
    throw;
  }
}

// All elements of what is still to be made of the devices' parts.
at::Tensor Shares::flat(uint64_t id) {
  Entry& entry = storages_.at(id);
  const uint8_t dtype = entry.share()->placement.dtype;
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(dtype)));
  return entry.view(device_, *layouts_.intern({dtype, 0, {entry.bytes() / item_bytes}, {1}}), 0);
}

}  // namespace forebay::worker
