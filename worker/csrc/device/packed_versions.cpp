#include "device/packed_versions.h"

#include <utility>

#include <c10/util/Exception.h>
#include <forebay/checkpoints.h>
#include <forebay/image.h>

namespace forebay::worker {

namespace {

const std::string kNotInImages = "another worker went on from an image, and images have none for processes that have not begun";
const std::string kNoRoomInImage = "another worker went on from an image that had no room for them";

bool has_bytes(const Preimage& preimage) { return preimage.memory() && preimage.bytes() > 0; }

VersionedStorage& watch_of(Entry& entry) { return static_cast<VersionedStorage&>(*entry.watch()); }

}  // namespace

// Leaving.

// What a version that stays behind keeps, the version before it needs (Versions::drop).
PackedVersions::Folded PackedVersions::folded() const {
  Folded folded;
  if (packing_ == Packing::kNone) return folded;
  for (const auto& [number, version] : versions_.versions_) {
    if (packing_ == Packing::kAll || !version.snapshot) {
      folded.emplace_back(number, version.kept);
    } else if (!folded.empty()) {
      auto& [before, kept] = folded.back();
      for (const auto& [id, preimage] : version.kept) {
        if (watch_of(storages_.at(id)).born < before) kept.try_emplace(id, preimage);
      }
    }
  }
  return folded;
}

void PackedVersions::note(const Versions::Preimages& preimages) {
  for (const auto& [id, preimage] : preimages) {
    if (numbers_.try_emplace(preimage.get(), preimages_.size() + 1).second) preimages_.push_back(preimage);
  }
}

void PackedVersions::put(wire::Writer& out, const NumberOf& number_of) {
  const Folded kept = folded();
  for (const auto& [number, preimages] : kept) {
    note(preimages);
    note(versions_.versions_.at(number).freed);
  }
  out.varint(versions_.newest_);
  out.varint(versions_.last_for_forks_);
  out.string(packing_ == Packing::kNone && versions_.are_kept() ? kNoRoomInImage : versions_.why_dropped_);
  out.string(packing_ == Packing::kAll ? versions_.why_no_forks_ : kNotInImages);
  out.varint(preimages_.size());
  for (const auto& preimage : preimages_) {
    out.varint(static_cast<uint64_t>(preimage->bytes()));
    out.u8(has_bytes(*preimage));
  }
  out.varint(kept.size());
  for (const auto& [number, preimages] : kept) {
    const Versions::Version& version = versions_.versions_.at(number);
    out.varint(number);
    out.u8(version.is_named);
    out.u8(version.snapshot != nullptr);
    if (version.snapshot) put_snapshot(out, *version.snapshot, number_of);
    put_preimages(out, preimages);
    put_preimages(out, version.freed);
  }
  put_storages(out);
}

void PackedVersions::put_preimages(wire::Writer& out, const Versions::Preimages& preimages) const {
  out.varint(preimages.size());
  for (const auto& [id, preimage] : preimages) {
    out.varint(id);
    out.varint(numbers_.at(preimage.get()));
  }
}

void PackedVersions::put_snapshot(wire::Writer& out, const Snapshot& snapshot, const NumberOf& number_of) const {
  out.varint(snapshot.sequence);
  out.varint(snapshot.failures);
  out.varint(snapshot.items.size());
  for (const auto& item : snapshot.items) wire::put_image_storage(out, {item.id, item.bytes, number_of(item.cause), item.has_bytes});
}

// Of one that was put back to what no version has any more, nobody needs to know.
void PackedVersions::put_storages(wire::Writer& out) const {
  wire::Writer watched;
  uint64_t count = 0;
  storages_.for_each([&](uint64_t id, Entry& entry) {
    if (entry.watch() == nullptr || packing_ == Packing::kNone) return;
    const VersionedStorage& storage = watch_of(entry);
    const auto same = numbers_.find(storage.same.get());
    watched.varint(id);
    watched.varint(storage.born);
    watched.varint(storage.kept_in);
    watched.varint(same == numbers_.end() ? 0 : same->second);
    ++count;
  });
  out.varint(count);
  out.raw(watched.bytes().data(), watched.size());
}

void PackedVersions::hand_over(const Storages::TakeBytes& take) const {
  for (const auto& preimage : preimages_) {
    if (has_bytes(*preimage)) preimage->hand_over(device_, take);
  }
}

// Coming.

void ArrivingVersions::get(wire::Reader& in, const CauseOf& cause_of, bool parked) {
  newest_ = in.varint();
  last_for_forks_ = in.varint();
  why_dropped_ = in.string();
  why_no_forks_ = in.string();
  get_preimages(in, parked);
  for (size_t left = in.count(wire::kCheckpointsMax, "the number of checkpoints"); left > 0; --left) get_version(in, cause_of);
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) get_storage(in);
  if (!in.done()) throw wire::WireError("something after the versions of an image");
  for (const auto& [number, version] : arrived_) {
    for (const auto& [id, preimage] : version.kept) {
      if (watches_.count(id) == 0) throw wire::WireError("a version keeps what no storage held");
    }
  }
}

void ArrivingVersions::get_preimages(wire::Reader& in, bool parked) {
  int64_t free_bytes = storages_.limit_bytes() - storages_.used_bytes();
  for (size_t left = in.count(wire::kCheckpointsMax * wire::kStoragesMax, "the number of what versions keep"); left > 0; --left) {
    const auto bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
    c10::Storage memory(nullptr);
    if (in.u8() != 0) {
      sizes_.push_back(bytes);
      free_bytes -= bytes;
      if (free_bytes < 0) refuse(Versions::kForMemory);
      try {
        if (refused_.empty()) memory = parked || versions_.shared_.are_several() ? device_.allocate_parked(bytes) : device_.allocate(bytes, /*zeroed=*/false);
      } catch (const c10::OutOfMemoryError&) {
        refuse(Versions::kForMemory);
      }
    }
    preimages_.push_back(std::make_shared<Preimage>(std::move(memory), bytes, storages_));
  }
  if (refused_.empty()) return;
  for (auto& preimage : preimages_) preimage = std::make_shared<Preimage>(c10::Storage(nullptr), preimage->bytes(), storages_);
}

const std::shared_ptr<Preimage>& ArrivingVersions::preimage(uint64_t number) const {
  if (number == 0 || number > preimages_.size()) throw wire::WireError("a version keeps what does not come");
  return preimages_[number - 1];
}

Versions::Preimages ArrivingVersions::get_kept(wire::Reader& in) const {
  Versions::Preimages kept;
  for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) {
    const uint64_t id = in.varint();
    kept.emplace(id, preimage(in.varint()));
  }
  return kept;
}

void ArrivingVersions::get_version(wire::Reader& in, const CauseOf& cause_of) {
  const uint64_t number = in.varint();
  if (number > newest_ || (!arrived_.empty() && number <= arrived_.rbegin()->first)) throw wire::WireError("versions that do not ascend");
  auto& version = arrived_[number];
  version.is_named = in.u8() != 0;
  if (in.u8() != 0) {
    Snapshot snapshot;
    snapshot.sequence = in.varint();
    snapshot.failures = in.varint();
    for (size_t left = in.count(wire::kStoragesMax, "the number of storages"); left > 0; --left) {
      const auto item = wire::get_image_storage(in, wire::kStoragesMax);
      snapshot.items.push_back({item.id, item.bytes, cause_of(item.cause), item.has_bytes});
    }
    version.snapshot = std::make_unique<const Snapshot>(std::move(snapshot));
  }
  version.kept = get_kept(in);
  version.freed = get_kept(in);
}

void ArrivingVersions::get_storage(wire::Reader& in) {
  const uint64_t id = in.varint(), born = in.varint(), kept_in = in.varint(), same = in.varint();
  if (born > newest_ || kept_in > newest_) throw wire::WireError("a storage of a version that was never taken");
  auto watch = std::make_unique<VersionedStorage>(versions_, id, storages_.at(id), born);
  watch->kept_in = kept_in;
  if (same != 0) watch->same = preimage(same);
  watches_[id] = std::move(watch);
}

std::vector<ArrivingVersions::Place> ArrivingVersions::places() const {
  std::vector<Place> places;
  for (const int64_t bytes : sizes_) places.push_back({c10::Storage(nullptr), bytes});
  auto place = places.begin();
  for (const auto& preimage : preimages_) {
    if (preimage->memory()) (place++)->memory = preimage->memory();
  }
  return places;
}

void ArrivingVersions::settle() {
  versions_.newest_ = newest_;
  versions_.last_for_forks_ = last_for_forks_;
  versions_.why_dropped_ = why_dropped_;
  versions_.why_no_forks_ = why_no_forks_;
  for (auto& [id, watch] : watches_) storages_.at(id).watch_by(std::move(watch));
  if (!arrived_.empty()) versions_.follow();
  versions_.versions_ = std::move(arrived_);
  if (!refused_.empty()) versions_.drop_all(refused_);
}

}  // namespace forebay::worker
