// The storages of a session, by the ids the client chose.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "device/bulk_copy.h"
#include "device/device.h"
#include "device/placement.h"
#include "device/remote_memory.h"
#include "device/spill.h"

namespace forebay::worker {

// A geometry that was checked once, when its template came. Ids are never used again within a session.
struct Layout {
  uint64_t id = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  caffe2::TypeMeta type;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t span = 0;  // elements
  int64_t numel = 0;
  int64_t item_bytes = 0;
  bool conj = false;
  bool neg = false;

  int64_t span_bytes() const { return span * item_bytes; }
};

// Throws wire::WireError for a dtype that is not served, or more elements than can be counted.
Layout checked_layout(uint64_t id, const wire::Geometry& geometry);

// The least and the largest of a tensor's numbers.
struct Interval {
  double least = 0;
  double most = 0;
};

// What all devices of a gang hold of a storage together: this one in the storage's memory, the others in theirs.
class Share {
 public:
  explicit Share(const Placement& what) : placement(what) {}
  ~Share() {
    if (copied_bytes_ != nullptr) *copied_bytes_ -= counted_;
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  // Counts what the other devices hold beside the storage's own bytes, as long as they do.
  void count_copies(int64_t& copied_bytes, int64_t bytes) {
    copied_bytes_ = &copied_bytes;
    copied_bytes += counted_ = bytes;
  }

  Placement placement;
  std::vector<std::unique_ptr<RemoteMemory>> others;
  uint64_t used = 0;     // the number of the call that used it last
  bool is_lent = false;  // a call on rows has used it

 private:
  int64_t* copied_bytes_ = nullptr;
  int64_t counted_ = 0;
};

// The home of what no device has room for: the memory of the first device's host.
constexpr int kOnHost = -1;

// A storage's memory there; counted as long as it is.
class HostMemory {
 public:
  // `period`: of what all devices held in rows (placement.h), else 0.
  HostMemory(c10::Storage memory, int64_t period, int64_t& hosted_bytes) : memory_(std::move(memory)), period_(period), hosted_bytes_(hosted_bytes) { hosted_bytes_ += bytes(); }
  ~HostMemory() { hosted_bytes_ -= bytes(); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  const c10::Storage& memory() const { return memory_; }
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.mutable_data()); }
  int64_t period() const { return period_; }

 private:
  int64_t bytes() const { return static_cast<int64_t>(memory_.nbytes()); }

  c10::Storage memory_;
  int64_t period_;
  int64_t& hosted_bytes_;
};

// Of one storage: asked before its bytes are used, and when its client frees it.
class StorageWatch {
 public:
  virtual ~StorageWatch() = default;
  // The bytes are in its memory afterwards. May throw c10::OutOfMemoryError, CommandError.
  virtual void before_read() = 0;
  virtual void before_write() = 0;
  // As before_write, before several devices are made ready for the write, if they hold the storage.
  virtual void before_placed_write() { before_write(); }
  // As before_write, of a write that leaves nothing of what is there.
  virtual void before_overwrite() { before_write(); }
  // Whether it stays, though its client has freed it.
  virtual bool stays_when_freed() = 0;
  // Whether the session's client has freed it.
  virtual bool is_freed() const = 0;
};

// One storage. Its memory is made when it is first touched, so that an ALLOCATE needs no lease. While the session is parked it may be
// spilled: its bytes are in a file, in pieces.
class Entry {
 public:
  Entry(int64_t bytes, Cause cause) : bytes_(bytes), cause_(std::move(cause)) {}

  int64_t bytes() const { return bytes_; }
  // Why it was never made: it has no bytes then.
  const Cause& cause() const { return cause_; }
  // Why it has fewer bytes than the client gave it, which a failure kept from growing.
  const Cause& shortfall() const { return shortfall_; }
  void fall_short(const Cause& cause) { shortfall_ = cause; }
  // Throws wire::WireError for a range beyond its bytes, which is named `what`; CommandError if a failure kept it from growing so far.
  void check_range(uint64_t offset, size_t bytes, const char* what) const;
  const c10::Storage& memory() const { return memory_; }

  // Of a session with several devices: the one where its bytes lie, 0 for this one; or kOnHost.
  int home() const { return elsewhere_ ? elsewhere_->place() : on_host_ ? kOnHost : 0; }
  // Whether it was touched; else it reads as zeros, and may be made anywhere.
  bool holds_anything() const { return memory_ || elsewhere_ || on_host_ || !spilled_.empty(); }
  void live_elsewhere(std::unique_ptr<RemoteMemory> memory) {
    replace(c10::Storage(nullptr));
    spilled_.clear();
    elsewhere_ = std::move(memory);
  }
  void live_on_host(std::unique_ptr<HostMemory> memory) {
    replace(c10::Storage(nullptr));
    spilled_.clear();
    on_host_ = std::move(memory);
  }
  // Where its home is the host.
  const HostMemory* on_host() const { return on_host_.get(); }
  // Its memory on the other device that is its home, if one is. It has no home any more.
  std::unique_ptr<RemoteMemory> leave_home() {
    on_host_.reset();
    return std::move(elsewhere_);
  }
  // Whether its home is one that it was given to stay there (owners.h).
  bool is_kept() const { return kept_; }
  void keep() { kept_ = true; }

  // The storage's memory, zeroed if it is new, for a caller that may write to it. May throw c10::OutOfMemoryError.
  const c10::Storage& touch(const Device& device) {
    if (watch_) [[unlikely]] watch_->before_write();
    forget_numbers();
    return memory_of(device);
  }
  // As touch, for a caller that only reads.
  const c10::Storage& read(const Device& device) {
    if (watch_) [[unlikely]] watch_->before_read();
    return memory_of(device);
  }
  // As touch, for a caller that overwrites all of it.
  const c10::Storage& touch_unwritten(const Device& device);

  // Whether it reads as zeros, and may be made in any placement.
  bool is_untouched() const { return !share_ && !holds_anything() && !cause_; }
  // Where all devices hold it together; then `memory` is this device's part.
  Share* share() const { return share_.get(); }
  bool is_partial() const { return share_ && share_->placement.is_partial(); }
  bool is_in_rows() const { return share_ && share_->placement.sharing == Sharing::kRows; }
  void share_as(std::unique_ptr<Share> share) {
    share_ = std::move(share);
    kept_ = false;
    forget_views();
  }
  // Counts it there when it is freed.
  void tell_end(std::shared_ptr<int64_t> count) { end_.count = std::move(count); }
  const std::shared_ptr<int64_t>& told_end() const { return end_.count; }
  // Puts other memory in its place, and gives back what was there.
  void exchange(c10::Storage& memory) {
    std::swap(memory_, memory);
    forget_views();
  }

  // A tensor over the storage; the caller has checked that it lies within.
  const at::Tensor& view(const Device& device, const Layout& layout, int64_t offset);
  // Takes over the memory that an operator returned, and the tensor as a view of it.
  void adopt(const at::Tensor& tensor, uint64_t layout_id);
  void replace(c10::Storage memory) {
    memory_ = std::move(memory);
    elsewhere_.reset();
    on_host_.reset();
    share_.reset();
    kept_ = false;
    forget_views();
  }
  // Its bytes lie there now.
  void relocate(c10::Storage memory) {
    memory_ = std::move(memory);
    views_ = {};
  }
  void forget_views() {
    views_ = {};
    forget_numbers();
  }

  // What is known of the numbers of a view, or null. `except`: but for those.
  const Interval* numbers(const Layout& layout, int64_t offset, std::optional<int64_t> except) const;
  void note_numbers(const Layout& layout, int64_t offset, std::optional<int64_t> except, const Interval& interval);
  // Something writes to the storage.
  void forget_numbers() {
    for (auto& view : views_) view.numbers.reset();
    uploaded_.clear();
  }
  // A copy on the host of all that the storage holds, as long as nothing writes to it; or nothing.
  const std::vector<uint8_t>& uploaded() const { return uploaded_; }
  void keep_upload(const uint8_t* data, size_t bytes) { uploaded_.assign(data, data + bytes); }

  const std::vector<SpillFile::Place>& spilled() const { return spilled_; }

  StorageWatch* watch() const { return watch_.get(); }
  // Gives back who watched it before.
  std::unique_ptr<StorageWatch> watch_by(std::unique_ptr<StorageWatch> watch) { return std::exchange(watch_, std::move(watch)); }

 private:
  friend class StorageAside;
  friend class Storages;
  struct Numbers {
    std::optional<int64_t> except;
    Interval interval;
  };
  struct View {
    uint64_t layout = 0;
    int64_t offset = 0;
    at::Tensor tensor;
    std::optional<Numbers> numbers;
  };
  const c10::Storage& memory_of(const Device& device);

  int64_t bytes_;
  Cause cause_;
  Cause shortfall_;
  c10::Storage memory_{nullptr};
  std::unique_ptr<RemoteMemory> elsewhere_;
  std::unique_ptr<HostMemory> on_host_;
  std::unique_ptr<Share> share_;
  bool kept_ = false;
  struct End {
    std::shared_ptr<int64_t> count;
    ~End() {
      if (count) ++*count;
    }
  } end_;
  std::vector<SpillFile::Place> spilled_;
  std::unique_ptr<StorageWatch> watch_;
  std::array<View, 2> views_;
  std::vector<uint8_t> uploaded_;
  uint8_t next_view_ = 0;
};

// How much of a parked session may be where.
struct ParkingSpace {
  int64_t host_bytes = std::numeric_limits<int64_t>::max();
  int64_t spill_bytes = 0;
};

// All storages of a session, within the flavor's memory limit.
class Storages {
 public:
  explicit Storages(const Device& device);

  void set_limit(int64_t bytes) { limit_bytes_ = bytes; }
  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t used_bytes() const { return used_bytes_; }
  // Of these, what is not in memory (StorageWatch).
  int64_t absent_bytes() const { return absent_bytes_; }
  void count_absent(int64_t bytes) { absent_bytes_ += bytes; }
  // What is kept of their former bytes, which counts as well. Where there is no room, `give_up` lets go of so many bytes of it, if it can.
  void count_kept(int64_t bytes) { kept_bytes_ += bytes; }
  int64_t kept_bytes() const { return kept_bytes_; }
  void make_room_by(std::function<void(int64_t bytes)> give_up) { give_up_ = std::move(give_up); }
  size_t size() const { return entries_.size(); }

  // Throws wire::WireError for an id that names no storage.
  Entry& at(uint64_t id);
  // Throws wire::WireError for 0, an id in use, or one storage too many.
  void check_new(uint64_t id) const;
  // Throws CommandError (out of memory) if `bytes` more do not fit.
  void check_room(int64_t bytes) const;

  Entry& insert(uint64_t id, int64_t bytes);
  // `see`: every storage, in any order.
  template <class See>
  void for_each(const See& see) {
    for (auto& [id, entry] : entries_) see(id, entry);
  }
  // Makes the id stand for what a failure kept from being made, whether some of it was made or not.
  void insert_failed(uint64_t id, const Cause& cause);
  void resize(uint64_t id, int64_t bytes);
  // Keeps on the host what all of a small storage on an accelerator was given, until something writes to it, or more was given to others.
  void keep_upload(uint64_t id, const uint8_t* data, int64_t bytes);
  // Says how many bytes all devices together hold of it, which was inserted with this device's alone.
  void count_as(uint64_t id, int64_t bytes);
  void free(uint64_t id);
  // As free, of an id that need not be in use.
  void withdraw(uint64_t id);

  // Parking: parking.cpp. Moves every storage's memory off the device: to the host, and what has no place there to a file in the directory.
  // What the disk does not take stays on the host. Returns the bytes spilled.
  int64_t park(const ParkingSpace& space, const std::string& spill_directory);
  // And back. Throws SpillDamaged, std::system_error, c10::OutOfMemoryError.
  void restore();
  bool parked() const { return parked_; }
  int64_t spilled_bytes() const;
  // Through which bulk copies of this session go.
  BulkCopy::Staging& staging() { return staging_; }

  // Images. What there is, by id; and the bytes of it, in that order, wherever they lie: in parts, of which each is there until `take` returns.
  struct Item {
    uint64_t id = 0;
    int64_t bytes = 0;
    Cause cause;
    bool has_bytes = false;  // false where it was never touched: it reads as zeros
  };
  // `with_freed`: those as well that stay though their client has freed them.
  std::vector<Item> items(bool with_freed = false) const;
  using TakeBytes = std::function<void(const uint8_t* data, int64_t bytes)>;
  void hand_over(const std::vector<Item>& items, const TakeBytes& take);
  // Of one that is on this host: those from the offset on that lie together, and how many they are. `staging` keeps what comes from a file.
  const uint8_t* bytes_at(uint64_t id, int64_t offset, int64_t& bytes, std::vector<uint8_t>& staging);
  // Whether a failure kept one of them from growing.
  bool falls_short() const;
  // A storage that comes from another worker; to be parked here until it is restored, where that is said. Throws wire::WireError for an id that
  // cannot be, c10::OutOfMemoryError.
  Entry& admit(const Item& item, bool parked);
  // As admit, of one whose bytes lie in this memory of the device.
  Entry& admit(const Item& item, c10::Storage memory);
  bool has(uint64_t id) const { return entries_.count(id) != 0; }
  // Whether there is one that its client has not freed.
  bool is_alive(uint64_t id) const {
    const auto found = entries_.find(id);
    return found != entries_.end() && !(found->second.watch_ && found->second.watch_->is_freed());
  }


 private:
  friend class StorageAside;
  struct Mix {
    uint64_t salt;
    size_t operator()(uint64_t id) const {
      id = (id ^ salt) * 0x9e3779b97f4a7c15;
      return static_cast<size_t>(id ^ (id >> 32));
    }
  };
  void spill(const std::vector<Entry*>& entries, const std::string& directory);
  void move_to_host(const std::vector<Entry*>& entries);
  void move_to_device(const std::vector<Entry*>& entries);
  void unspill_to_host(const std::vector<Entry*>& entries);
  void unspill_to_device(const std::vector<Entry*>& entries);
  void unspilled(const std::vector<Entry*>& entries, std::vector<c10::Storage>& memory);

  const Device& device_;
  std::unordered_map<uint64_t, Entry, Mix> entries_;
  std::optional<SpillFile> spill_file_;
  BulkCopy::Staging staging_;
  std::deque<uint64_t> uploads_kept_;
  int64_t used_bytes_ = 0;
  int64_t absent_bytes_ = 0;
  int64_t kept_bytes_ = 0;
  std::function<void(int64_t)> give_up_;
  int64_t limit_bytes_ = std::numeric_limits<int64_t>::max();
  bool parked_ = false;
};

// A storage that is not in memory (StorageWatch) is out of the way while it lives, so that a call can make one under the same id. What came under the id
// is the storage's memory afterwards, and it is in memory.
class StorageAside {
 public:
  StorageAside(Storages& storages, uint64_t id);
  ~StorageAside();
  StorageAside(const StorageAside&) = delete;
  StorageAside& operator=(const StorageAside&) = delete;

 private:
  Storages& storages_;
  std::unordered_map<uint64_t, Entry, Storages::Mix>::node_type node_;
};

}  // namespace forebay::worker
