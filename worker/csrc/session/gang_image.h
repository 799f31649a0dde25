// How a session's storages lie on its devices, for images and checkpoints. What an image has beside its storages' bytes where the session computes on several devices: how they hold the storages, and what was found of the
// program's steps. So another gang of as many devices divides the calls that follow as this one would, and rounds alike.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <forebay/wire.h>

#include "device/device.h"
#include "device/placement.h"
#include "device/storage.h"
#include "device/versions.h"
#include "parallel/gang_caller.h"

namespace forebay::worker {

// Gets bodies of frames that answer a FETCH: an opcode's and what comes with it, and bytes.
using SendImage = std::function<void(const wire::Writer& head, const uint8_t* payload, size_t payload_bytes)>;

inline wire::Writer opcode(wire::Reply reply) {
  wire::Writer head;
  head.reply(reply);
  return head;
}

class GangImage final : public SharedStorages {
 public:
  GangImage(const Device& device, Storages& storages, GangCaller& gang) : device_(device), storages_(storages), gang_(gang) {}

  // Whether an image of the session as it is now has storages that lie on several devices.
  bool is_on() const { return gang_.is_on() && !storages_.parked(); }
  // Why none can be made now; empty: one can.
  std::string refusal();

  // As of Storages; nothing moves. All must be settled. Of a sum that is still to be made of the devices' parts, this device's part.
  std::vector<Storages::Item> items(bool with_freed);
  void hand_over(const std::vector<Storages::Item>& items, const Storages::TakeBytes& take);
  // What comes behind the bytes of these storages.
  void send(const std::vector<Storages::Item>& items, const SendImage& send);

  // For checkpoints.
  bool are_several() const override { return gang_.is_on(); }
  void read(uint64_t id, const c10::Storage& target) override;
  void write(uint64_t id, const c10::Storage& whole) override;

  // Behind their opcodes. They throw wire::WireError.
  void take_holdings(wire::Reader& in);
  void take_summand(wire::Reader& in);
  // Before a session is parked: how its devices hold the storages. And that they do so again, so that it rounds as if it had not been parked; false where
  // that is not known, or they have other memory now. They throw as `restore`.
  void note_parked();
  bool restore_parked();

  // All has come: the devices hold the storages again. Throws wire::WireError, CommandError, what allocating throws.
  void restore();

 private:
  // How the devices hold a storage.
  struct Holding {
    uint64_t id = 0;
    bool is_shared = false;
    Placement placement;        // if it is
    uint64_t used = 0;          // likewise
    bool is_lent = false;       // likewise
    int home = 0;               // if it is not
    int64_t period = 0;         // likewise, on the host
    bool is_kept = false;       // likewise
  };
  // What was found of how calls are divided.
  static void put_found(wire::Writer& out, DataParallel& found);
  static void get_found(wire::Reader& in, DataParallel& found);
  static void put_holding(wire::Writer& out, uint64_t id, const Entry& entry);
  Holding get_holding(wire::Reader& in) const;
  // As it is now. A sum that is still to be made is none.
  static Holding holding_of(uint64_t id, const Entry& entry);
  void demand_settled();
  void hand_over_one(const Storages::Item& item, const Storages::TakeBytes& take);
  void hand_over_rows(uint64_t id, const Storages::TakeBytes& take);
  void hand_over_remote(uint64_t id, const Storages::TakeBytes& take);
  void send_summands(uint64_t id, const SendImage& send);
  // Before what stays comes back to this device: what does not lie there, whole.
  void move_away(const Holding& holding);
  // Storages that are off their devices come back to them.
  void bring_back(const std::vector<Holding>& holdings);
  void share(const Holding& holding);
  int devices() const { return static_cast<int>(gang_.gang().size()); }
  Shares& shares() const;

  const Device& device_;
  Storages& storages_;
  GangCaller& gang_;
  std::vector<uint8_t> holdings_;                                       // as they came so far
  std::vector<Holding> parked_;                                         // of a session that is parked, and the memory that it had
  int64_t parked_limit_bytes_ = 0;
  std::map<std::pair<uint64_t, int>, std::vector<uint8_t>> summands_;   // by storage and device
};

}  // namespace forebay::worker
