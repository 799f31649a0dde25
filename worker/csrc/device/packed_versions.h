// Versions of a session on their way to another worker: first which there are and what each keeps, then the bytes of that.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/wire.h>

#include "base/failure.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/versions.h"

namespace forebay::worker {

// Which of them go.
enum class Packing : uint8_t {
  kAll,           // the session leaves
  kWithoutForks,  // but for those with which other sessions may begin: an image, which is to be small
  kNone,          // an image that has no room for any
};

// Of those that leave.
class PackedVersions {
 public:
  using NumberOf = std::function<uint64_t(const Cause& cause)>;

  PackedVersions(const Device& device, const Versions& versions, Storages& storages, Packing packing)
      : device_(device), versions_(versions), storages_(storages), packing_(packing) {}

  // Whether there is anything to be told of them.
  bool are_known() const { return versions_.newest_ != 0 || versions_.last_for_forks_ != 0; }
  // Which there are. `number_of`: failures by their number in the image; 0: none.
  void put(wire::Writer& out, const NumberOf& number_of);
  // The bytes of what they keep, behind `put`.
  void hand_over(const Storages::TakeBytes& take) const;

 private:
  using Folded = std::vector<std::pair<uint64_t, Versions::Preimages>>;  // what each version keeps, by its number

  Folded folded() const;
  void note(const Versions::Preimages& preimages);
  void put_preimages(wire::Writer& out, const Versions::Preimages& preimages) const;
  void put_snapshot(wire::Writer& out, const Snapshot& snapshot, const NumberOf& number_of) const;
  void put_storages(wire::Writer& out) const;

  const Device& device_;
  const Versions& versions_;
  Storages& storages_;
  const Packing packing_;
  std::unordered_map<const Preimage*, uint64_t> numbers_;  // from 1
  std::vector<std::shared_ptr<Preimage>> preimages_;       // by number
};

// Of those that come.
class ArrivingVersions {
 public:
  using CauseOf = std::function<Cause(uint64_t number)>;

  ArrivingVersions(const Device& device, Versions& versions, Storages& storages) : device_(device), versions_(versions), storages_(storages) {}

  // What `put` wrote, once the storages are there. `parked`: what is kept is to lie off the device. Where there is no room, there will be no
  // versions. Throws wire::WireError.
  void get(wire::Reader& in, const CauseOf& cause_of, bool parked);
  // Where the bytes of each belong, in their order.
  struct Place {
    c10::Storage memory;  // null: nowhere
    int64_t bytes;
  };
  std::vector<Place> places() const;
  // All bytes have come.
  void settle();
  // There are to be none, for this reason.
  void refuse(const std::string& why) { refused_ = why; }

 private:
  void get_preimages(wire::Reader& in, bool parked);
  Versions::Preimages get_kept(wire::Reader& in) const;
  void get_version(wire::Reader& in, const CauseOf& cause_of);
  void get_storage(wire::Reader& in);
  const std::shared_ptr<Preimage>& preimage(uint64_t number) const;

  const Device& device_;
  Versions& versions_;
  Storages& storages_;
  std::vector<int64_t> sizes_;  // of those with bytes
  std::vector<std::shared_ptr<Preimage>> preimages_;
  std::map<uint64_t, Versions::Version> arrived_;
  std::unordered_map<uint64_t, std::unique_ptr<VersionedStorage>> watches_;  // by storage
  uint64_t newest_ = 0;
  uint64_t last_for_forks_ = 0;
  std::string why_dropped_;
  std::string why_no_forks_;
  std::string refused_;  // empty: there is room for them
};

}  // namespace forebay::worker
