// Checkpoints of a session's storages, by copy-on-write: a *version* is what the storages held when it was taken.
//
// Taking one copies nothing. Before a storage is written to for the first time after it, what the storage holds is kept in the last version. An
// older version that keeps nothing of a storage has it from the next one that does, or else from the storage itself.
//
// A version with which other sessions may begin has a *snapshot*, and keeps what its storages held when they are freed, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "device/device.h"
#include "device/storage.h"

namespace forebay::worker {

// What a storage held.
class Preimage {
 public:
  // Without memory: zeros.
  Preimage(c10::Storage memory, int64_t bytes, Storages& storages) : memory_(std::move(memory)), bytes_(bytes), storages_(storages) { count(true); }
  ~Preimage() { count(false); }
  Preimage(const Preimage&) = delete;
  Preimage& operator=(const Preimage&) = delete;

  const c10::Storage& memory() const { return memory_; }
  int64_t bytes() const { return bytes_; }
  // Of one that has memory: its bytes, wherever they lie.
  void hand_over(const Device& device, const Storages::TakeBytes& take) const;
  // Its bytes lie there now.
  void relocate(c10::Storage memory) { memory_ = std::move(memory); }
  // Whether it counts as memory of the session: not while a storage has the same memory.
  void count(bool counts) {
    if (counts != counts_ && memory_) storages_.count_kept(counts ? bytes_ : -bytes_);
    counts_ = counts;
  }

 private:
  c10::Storage memory_;
  const int64_t bytes_;
  Storages& storages_;
  bool counts_ = false;
};

// What there was between two commands, but for the bytes of storages.
struct Snapshot {
  uint64_t sequence = 0;  // of the next call
  uint64_t failures = 0;  // so far
  std::vector<Storages::Item> items;
};

// The storages of a session as several devices hold them. What those were sent is carried out first.
class SharedStorages {
 public:
  virtual ~SharedStorages() = default;
  virtual bool are_several() const = 0;
  // All of a storage's bytes, into memory of the host's. Throws CommandError, c10::Error.
  virtual void read(uint64_t id, const c10::Storage& target) = 0;
  // Puts such bytes where the storage's lie. Throws likewise.
  virtual void write(uint64_t id, const c10::Storage& whole) = 0;
};

class Versions;

// A storage that was there when a version was taken.
class VersionedStorage final : public StorageWatch {
 public:
  VersionedStorage(Versions& versions, uint64_t id, Entry& entry, uint64_t born) : id(id), entry(entry), born(born), kept_in(born), versions_(versions) {}
  ~VersionedStorage() override;

  void before_read() override {}
  // Several devices change what they hold when nothing is written, too: then only before_placed_write counts.
  void before_write() override;
  void before_placed_write() override;
  void before_overwrite() override;
  bool stays_when_freed() override { return false; }
  bool is_freed() const override { return false; }

  const uint64_t id;
  Entry& entry;
  const uint64_t born;  // the last version when it was made: it is of later ones
  uint64_t kept_in;     // the last version that keeps something of it; `born`: none
  std::shared_ptr<Preimage> same;  // what it was put back to, as long as nothing has written to it since

 private:
  Versions& versions_;
};

class Versions {
 public:
  // What became of the storages that the session went back with.
  struct Return {
    std::vector<uint64_t> changed;  // storages that were put back
    uint64_t resized = 0;           // storages that have another size since, and were left alone
  };

  Versions(const Device& device, Storages& storages, SharedStorages& shared) : device_(device), storages_(storages), shared_(shared) {}
  ~Versions() { end(""); }
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

  bool are_kept() const { return !versions_.empty(); }
  // Versions are taken with ascending numbers. Throws wire::WireError for another one.
  void take(uint64_t number, bool is_named);
  // As take, of one with which other sessions may begin.
  void take_for_forks(uint64_t number, Snapshot snapshot);
  bool has(uint64_t number) const { return versions_.count(number) != 0; }
  // Those that the session may go back to.
  std::vector<uint64_t> numbers() const;
  // Why those that are not there any more were dropped, in one sentence. Empty: none was.
  const std::string& why_dropped() const { return why_dropped_; }
  // Whether one was dropped, or not taken, since this was asked last.
  bool take_dropped() { return std::exchange(is_dropped_, false); }
  // This one is not dropped for want of memory until the session has gone back to it, or another one is held.
  void hold(uint64_t number) { held_ = number; }
  // Whether the storages hold what they held then, but for those that were made since.
  bool is_present(uint64_t number) const;
  // Puts back what the storages held. The versions stay. Throws wire::WireError for one that is not there.
  Return go_back(uint64_t number);
  // Whether this one with which other sessions may begin has come, or a later one, whether or not it was taken.
  bool has_come(uint64_t number) const { return number <= last_for_forks_; }
  // Of one with which other sessions may begin; null: it is not there.
  const Snapshot* snapshot(uint64_t number) const;
  // The bytes of that one's items that have some, in their order, wherever they lie.
  void hand_over(uint64_t number, const Storages::TakeBytes& take);
  // Nobody needs this one any more, if it is there.
  void discard(uint64_t number);
  void drop_all(const std::string& why);
  // None is taken.
  void refuse(const std::string& why) {
    why_dropped_ = why;
    is_dropped_ = true;
  }
  // As refuse, of those with which other sessions may begin; and why the last one of them is not there. `number`: of one that comes, and is not taken.
  void refuse_forks(const std::string& why, uint64_t number = 0) {
    why_no_forks_ = why;
    last_for_forks_ = std::max(last_for_forks_, number);
  }
  const std::string& why_no_forks() const { return why_no_forks_; }
  // Drops versions until so many bytes are free, if that is possible.
  void make_room(int64_t bytes);
  // Moves what is kept off the device, as the storages have been; what does not fit into so many bytes is dropped.
  void park(int64_t bytes);
  static const std::string kForMemory;
  // As drop_all; nobody watches the storages any more.
  void end(const std::string& why);

 private:
  friend class ArrivingVersions;
  friend class PackedVersions;
  friend class VersionedStorage;
  using Preimages = std::unordered_map<uint64_t, std::shared_ptr<Preimage>>;  // by storage
  struct Version {
    bool is_named = false;
    Preimages kept;  // of storages that exist
    std::unique_ptr<const Snapshot> snapshot{};
    Preimages freed{};  // of storages that are in the snapshot
  };
  // Of some of the bytes; of all of them; of all of them, by what was kept, so that the storage needs no memory; of any, wherever devices hold them.
  enum class Write : uint8_t { kPart, kAll, kReturn, kPlaced };
  using Place = std::map<uint64_t, Version>::iterator;

  // Lets go of versions where the storages, or this host, need the room.
  void follow();
  uint64_t last() const { return versions_.empty() ? 0 : versions_.rbegin()->first; }
  Preimages kept_for(uint64_t number) const;
  void before_write(VersionedStorage& storage, Write write);
  // Null where there is no room, which drops the versions that would have it.
  std::shared_ptr<Preimage> preimage_of(const VersionedStorage& storage, Write write);
  // The storage gets memory of its own, where it shares that of the preimage.
  void part(Entry& entry, const std::shared_ptr<Preimage>& preimage, Write write);
  // The storage holds that, without a copy where the preimage is on the device.
  void put_back(VersionedStorage& storage, const std::shared_ptr<Preimage>& preimage);
  // Memory for a copy, for which versions are dropped until there is room; null once it is not needed any more, since no version wants it.
  c10::Storage allocate(int64_t bytes, const std::function<bool()>& is_needed);
  int64_t free_bytes() const { return storages_.limit_bytes() - storages_.used_bytes() - storages_.kept_bytes(); }
  void forget(const VersionedStorage& storage);
  void keep_freed(const VersionedStorage& storage);

  // Lets go of so many bytes, if it can: the oldest versions go first, and those with a name after the others.
  void give_up(int64_t bytes);
  bool drop_one(const std::string& why = kForMemory);
  void drop(Place version);
  void move_off(const std::shared_ptr<Preimage>& preimage);

  const Device& device_;
  Storages& storages_;
  SharedStorages& shared_;
  std::map<uint64_t, Version> versions_;
  uint64_t newest_ = 0;  // that was taken, whether it is still there or not
  uint64_t held_ = 0;
  uint64_t last_for_forks_ = 0;
  std::string why_dropped_;
  std::string why_no_forks_;
  bool is_dropped_ = false;
};

}  // namespace forebay::worker
