#include "session/gang_image.h"

#include <algorithm>
#include <utility>

#include "device/bulk_copy.h"
#include "device/recurrent.h"

namespace forebay::worker {

namespace {

constexpr size_t kHoldingsBytesMax = size_t{1} << 30;

}  // namespace

Shares& GangImage::shares() const {
  if (gang_.data_parallel() == nullptr) throw wire::WireError("an image of devices that hold storages together");
  return gang_.data_parallel()->shares_;
}

std::string GangImage::refusal() {
  if (!is_on()) return "";
  if (gang_.data_parallel() != nullptr && gang_.data_parallel()->step_.is_recording()) return "a step is recorded, of which it is chosen how to divide the next ones";
  for (const auto& item : storages_.items()) {
    const Entry& entry = storages_.at(item.id);
    if (entry.share() != nullptr && keeps_beside(entry.memory())) return "a layer keeps something for its derivative on several devices";
  }
  return "";
}

// Sending.

std::vector<Storages::Item> GangImage::items(bool with_freed) {
  auto items = storages_.items(with_freed);
  for (auto& item : items) {
    const Entry& entry = storages_.at(item.id);
    item.has_bytes = item.has_bytes || entry.home() != 0;
  }
  return items;
}

void GangImage::hand_over(const std::vector<Storages::Item>& items, const Storages::TakeBytes& take) {
  for (const auto& item : items) {
    if (item.has_bytes && item.bytes > 0) hand_over_one(item, take);
  }
}

void GangImage::hand_over_one(const Storages::Item& item, const Storages::TakeBytes& take) {
  Entry& entry = storages_.at(item.id);
  if (entry.share() != nullptr && entry.share()->placement.sharing == Sharing::kRows) return hand_over_rows(item.id, take);
  if (entry.home() == kOnHost) return take(entry.on_host()->data(), item.bytes);
  if (entry.home() != 0) return hand_over_remote(item.id, take);
  if (device_.is_host()) return take(static_cast<const uint8_t*>(entry.memory().data()), item.bytes);
  BulkCopy copy(device_, storages_.staging(), item.bytes);
  copy.fetch(entry.memory(), [&take](int64_t, const uint8_t* data, int64_t bytes) { take(data, bytes); });
  copy.finish();
}

void GangImage::hand_over_rows(uint64_t id, const Storages::TakeBytes& take) {
  const auto whole = shares().whole(id, [this](int64_t bytes) { return device_.allocate_parked(bytes); });
  take(static_cast<const uint8_t*>(whole.data()), storages_.at(id).bytes());
}

void GangImage::hand_over_remote(uint64_t id, const Storages::TakeBytes& take) {
  const Entry& entry = storages_.at(id);
  std::vector<uint8_t> piece(static_cast<size_t>(std::min(entry.bytes(), BulkCopy::kPartBytes)));
  for (int64_t done = 0; done < entry.bytes();) {
    const int64_t bytes = std::min(entry.bytes() - done, BulkCopy::kPartBytes);
    gang_.gang().homes().read(id, entry, done, bytes, piece.data());
    take(piece.data(), bytes);
    done += bytes;
  }
}

void GangImage::send(const std::vector<Storages::Item>& items, const SendImage& send) {
  wire::Writer out;
  out.varint(gang_.gang().size());
  std::vector<uint64_t> ids;
  for (const auto& item : items) {
    if (item.has_bytes && item.bytes > 0) ids.push_back(item.id);
  }
  out.varint(ids.size());
  for (const uint64_t id : ids) put_holding(out, id, storages_.at(id));
  out.u8(gang_.data_parallel() != nullptr);
  if (gang_.data_parallel() != nullptr) put_found(out, *gang_.data_parallel());
  for (size_t done = 0; done < out.size(); done += wire::kChunkBytesMax) {
    send(opcode(wire::Reply::kHoldings), out.bytes().data() + done, std::min(wire::kChunkBytesMax, out.size() - done));
  }
  for (const uint64_t id : ids) {
    if (storages_.at(id).is_partial()) send_summands(id, send);
  }
}

void GangImage::put_holding(wire::Writer& out, uint64_t id, const Entry& entry) {
  const Share* share = entry.share();
  out.varint(id);
  out.u8(share != nullptr);
  if (share == nullptr) {
    out.varint(static_cast<uint64_t>(entry.home() - kOnHost));
    out.varint(entry.on_host() == nullptr ? 0 : static_cast<uint64_t>(entry.on_host()->period()));
    return out.u8(entry.is_kept());
  }
  out.u8(static_cast<uint8_t>(share->placement.sharing));
  out.varint(static_cast<uint64_t>(share->placement.period));
  out.u8(share->placement.dtype);
  out.varint(share->used);
  out.u8(share->is_lent);
}

void GangImage::send_summands(uint64_t id, const SendImage& send) {
  const int64_t all = storages_.at(id).bytes();
  std::vector<uint8_t> piece(std::min(static_cast<size_t>(all), wire::kChunkBytesMax));
  for (int place = 1; place < devices(); ++place) {
    for (int64_t done = 0; done < all;) {
      const auto bytes = std::min<int64_t>(all - done, wire::kChunkBytesMax);
      gang_.gang().rank(place).read({{id, done, bytes, piece.data()}});
      wire::Writer head = opcode(wire::Reply::kSummand);
      head.varint(id);
      head.varint(static_cast<uint64_t>(place));
      send(head, piece.data(), static_cast<size_t>(bytes));
      done += bytes;
    }
  }
}

void GangImage::put_found(wire::Writer& out, DataParallel& found) {
  out.u8(found.on_);
  out.u8(found.has_room_);
  out.varint(found.calls_);
  out.varint(found.owners_.lent().size());
  for (const uint64_t id : found.owners_.lent()) out.varint(id);
  found.batches_.put(out);
  found.slices_.put(out);
  found.step_.put(out);
}

// Checkpoints.

void GangImage::demand_settled() {
  if (!gang_.is_settled()) throw CommandError(wire::FailureCode::kOperator, "a call failed on one of several devices");
}

void GangImage::read(uint64_t id, const c10::Storage& target) {
  demand_settled();
  const Entry& entry = storages_.at(id);
  if (keeps_beside(entry.memory())) throw CommandError(wire::FailureCode::kUnsupported, "a layer keeps something for its derivative on several devices");
  if (entry.is_partial()) shares().merge({id});
  auto* next = static_cast<uint8_t*>(target.mutable_data());
  hand_over_one({id, entry.bytes(), nullptr, true}, [&next](const uint8_t* data, int64_t bytes) {
    std::copy_n(data, bytes, next);
    next += bytes;
  });
}

void GangImage::write(uint64_t id, const c10::Storage& whole) {
  demand_settled();
  Entry& entry = storages_.at(id);
  if (!whole) return entry.replace(c10::Storage(nullptr));
  const Holding holding = holding_of(id, entry);
  const bool stays_here = holding.home == 0 && !entry.is_in_rows();
  auto memory = stays_here ? device_.allocate(entry.bytes(), /*zeroed=*/false) : device_.allocate_parked(entry.bytes());
  device_.copy(memory, 0, whole, 0, entry.bytes());
  entry.replace(std::move(memory));
  move_away(holding);
  share(holding);
}

GangImage::Holding GangImage::holding_of(uint64_t id, const Entry& entry) {
  Holding holding;
  holding.id = id;
  const Share* share = entry.is_partial() ? nullptr : entry.share();
  holding.is_shared = share != nullptr;
  if (share != nullptr) {
    holding.placement = share->placement;
    holding.used = share->used;
    holding.is_lent = share->is_lent;
  } else if (entry.share() == nullptr) {
    holding.home = entry.home();
    holding.period = entry.on_host() == nullptr ? 0 : entry.on_host()->period();
    holding.is_kept = entry.is_kept();
  }
  return holding;
}

// Receiving.

void GangImage::get_found(wire::Reader& in, DataParallel& found) {
  found.on_ = in.u8() != 0;
  found.has_room_ = in.u8() != 0;
  found.calls_ = in.varint();
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) found.owners_.lent().insert(in.varint());
  found.batches_.get(in);
  found.slices_.get(in);
  found.step_.get(in);
}

void GangImage::take_holdings(wire::Reader& in) {
  const size_t bytes = in.left();
  if (!gang_.is_on() || bytes > kHoldingsBytesMax - holdings_.size()) throw wire::WireError("what several devices hold, where there is one, or too much of it");
  const uint8_t* part = in.raw(bytes);
  holdings_.insert(holdings_.end(), part, part + bytes);
}

void GangImage::take_summand(wire::Reader& in) {
  if (!gang_.is_on()) throw wire::WireError("a part of a sum where there is one device");
  const uint64_t id = in.varint();
  const auto place = static_cast<int>(in.bounded(gang_.gang().size() - 1, "the number of a device"));
  auto& summand = summands_[{id, place}];
  const size_t bytes = in.left();
  if (place == 0 || bytes > static_cast<size_t>(storages_.at(id).bytes()) - summand.size()) throw wire::WireError("more bytes than a part of a sum has");
  const uint8_t* part = in.raw(bytes);
  summand.insert(summand.end(), part, part + bytes);
}

GangImage::Holding GangImage::get_holding(wire::Reader& in) const {
  Holding holding;
  holding.id = in.varint();
  holding.is_shared = in.u8() != 0;
  if (!holding.is_shared) {
    holding.home = static_cast<int>(in.bounded(gang_.gang().size(), "the home of a storage")) + kOnHost;
    holding.period = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "a period"));
    holding.is_kept = in.u8() != 0;
    return holding;
  }
  const uint8_t sharing = in.u8();
  if (sharing > static_cast<uint8_t>(Sharing::kMin)) throw wire::WireError("an unknown way to hold a storage");
  holding.placement.sharing = static_cast<Sharing>(sharing);
  holding.placement.period = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "a period"));
  holding.placement.dtype = in.u8();
  holding.used = in.varint();
  holding.is_lent = in.u8() != 0;
  return holding;
}

void GangImage::restore() {
  if (holdings_.empty()) return;  // what a session has left rests off devices
  const auto bytes = std::exchange(holdings_, {});
  wire::Reader in(bytes.data(), bytes.size());
  if (in.varint() != gang_.gang().size()) throw wire::WireError("an image of another number of devices");
  std::vector<Holding> holdings;
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) holdings.push_back(get_holding(in));
  bring_back(holdings);
  if ((in.u8() != 0) != (gang_.data_parallel() != nullptr)) throw wire::WireError("an image of devices that divide their work in another way");
  if (gang_.data_parallel() != nullptr) get_found(in, *gang_.data_parallel());
  if (!in.done()) throw wire::WireError("something behind what several devices hold");
  summands_.clear();
}

void GangImage::bring_back(const std::vector<Holding>& holdings) {
  for (const auto& holding : holdings) move_away(holding);
  storages_.restore();
  for (const auto& holding : holdings) share(holding);
}

// A sum that is still to be made is made, as it would be when a call uses it.
void GangImage::note_parked() {
  if (storages_.parked()) return;
  parked_.clear();
  parked_limit_bytes_ = storages_.limit_bytes();
  for (const auto& item : storages_.items(/*with_freed=*/true)) {
    const Entry& entry = storages_.at(item.id);
    if (entry.share() == nullptr && !entry.holds_anything()) continue;
    Holding holding = holding_of(item.id, entry);
    if (entry.is_partial()) {
      holding.is_shared = true;
      holding.used = entry.share()->used;
      holding.is_lent = entry.share()->is_lent;
    }
    parked_.push_back(holding);
  }
}

bool GangImage::restore_parked() {
  auto parked = std::exchange(parked_, {});
  if (parked.empty() || parked_limit_bytes_ != storages_.limit_bytes()) {
    if (gang_.data_parallel() != nullptr) gang_.data_parallel()->on_ = false;
    return false;
  }
  std::erase_if(parked, [this](const Holding& holding) { return !storages_.has(holding.id) || !storages_.at(holding.id).holds_anything(); });
  bring_back(parked);
  return true;
}

void GangImage::move_away(const Holding& holding) {
  Entry& entry = storages_.at(holding.id);
  const bool is_rows = holding.is_shared && holding.placement.sharing == Sharing::kRows;
  const int64_t period = holding.is_shared ? holding.placement.period : holding.period;
  if (period != 0 && (period < 0 || entry.bytes() % period != 0 || period % devices() != 0)) throw wire::WireError("rows that do not divide a storage");
  if (is_rows || holding.home == kOnHost) {
    gang_.gang().homes().keep_on_host(holding.id, gang_.gang().homes().on_host(holding.id), holding.period);
    if (is_rows) shares().cut(holding.id, period);
  } else if (holding.home != 0) {
    gang_.gang().homes().send_away(holding.id, holding.home);
  }
}

void GangImage::share(const Holding& holding) {
  Entry& entry = storages_.at(holding.id);
  if (holding.is_shared && holding.placement.sharing != Sharing::kRows) {
    shares().resume(holding.id, holding.placement, [&](int place) -> const uint8_t* {
      if (!holding.placement.is_partial()) return nullptr;
      const auto& summand = summands_[{holding.id, place}];
      if (summand.size() != static_cast<size_t>(entry.bytes())) throw wire::WireError("a part of a sum that did not come whole");
      return summand.data();
    });
  }
  if (holding.is_shared) {
    entry.share()->used = holding.used;
    entry.share()->is_lent = holding.is_lent;
  } else if (holding.is_kept) {
    entry.keep();
  }
}

}  // namespace forebay::worker
