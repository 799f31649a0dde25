// Where the members of process groups find each other's workers: under a number that is another one whenever all members' workers were replaced.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/leaf_mutex.h"
#include "forebay/wire.h"

namespace forebay {

// Where a worker lets in the others of a process group, and the ticket that they show it.
struct Door {
  std::string address;
  std::string ticket;
};

// Of a DOOR, behind its request.
inline Door read_door(wire::Reader& body) {
  Door door{body.string(), {}};
  door.ticket.assign(reinterpret_cast<const char*>(body.raw(wire::kTicketBytes)), wire::kTicketBytes);
  return door;
}

inline void put_member(wire::Writer& out, uint64_t group, uint64_t member, const Door& door) {
  out.command(wire::Command::kMember);
  out.varint(group);
  out.varint(member);
  out.string(door.address);
  out.raw(door.ticket.data(), door.ticket.size());
}

// What the members of one process group tell each other.
class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;
  virtual void tell(uint64_t meeting, const Door& own) = 0;
  // Waits for what another member tells. Calls `pause` now and then, which throws if nobody waits any more. Throws if the member does not come in time.
  virtual Door told_by(uint64_t meeting, uint64_t member, const std::function<void()>& pause) = 0;
};

// Images that the members of process groups keep together.
class CommonImages {
 public:
  virtual ~CommonImages() = default;
  // The workers of all members were replaced, under this number. Whether all go on from the image that this one was asked for last, and has kept; else
  // from the one before. Throws if the others cannot be asked.
  virtual bool go_on(uint64_t meeting) = 0;
};

// Of one session.
class Meetings {
 public:
  // A connection to a worker begins. Nothing: the pool does not know of this process's group, and replaces no worker of its.
  void begin(std::optional<uint64_t> number) {
    known_ = number.has_value();
    number_ = number.value_or(0);
  }
  // Whether the workers of all members are replaced together.
  bool are_known() const { return known_; }
  uint64_t number() const { return number_; }

  void add(uint64_t group, std::shared_ptr<MeetingPlace> place) {
    const std::lock_guard lock(mutex_);
    places_[group].swap(place);
  }
  // Null for a group that there never was.
  std::shared_ptr<MeetingPlace> place_of(uint64_t group) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(group);
    return found == places_.end() ? nullptr : found->second;
  }
  void clear() {
    decltype(places_) places;  // they end, as the images do, when the lock is free again
    keep_images(nullptr);
    const std::lock_guard lock(mutex_);
    places.swap(places_);
  }

  void keep_images(std::shared_ptr<CommonImages> images) {
    const std::lock_guard lock(mutex_);
    images_.swap(images);
  }
  // Null where there are none.
  std::shared_ptr<CommonImages> images() {
    const std::lock_guard lock(mutex_);
    return images_;
  }

 private:
  std::atomic<bool> known_{false};
  std::atomic<uint64_t> number_{0};
  LeafMutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<MeetingPlace>> places_;  // by the number of the group
  std::shared_ptr<CommonImages> images_;
};

}  // namespace forebay
