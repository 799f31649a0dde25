// Several devices of one session (a gang): the calls that each of them is sent.
//
// Until a plan divides a step, one device computes at a time. A storage lies whole on one device, its home; a call runs where most of the
// bytes lie that it is given, and the rest is brought there. Before another device goes on, all that was sent to the one before is known to
// be carried out: so a failure is as precise as on one device. What no device has room for while a call runs lies on the first one's host: so all
// storages together may take the memory of all devices, and a call the memory of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/device_rates.h"
#include "gang/device_sums.h"
#include "gang/gang_memory.h"
#include "gang/gang_templates.h"
#include "gang/homes.h"
#include "gang/rank.h"

namespace forebay::worker {

class Gang {
 public:
  Gang(Ranks others, Homes policy, const Device& device, Storages& storages, Layouts& layouts)
      : others_(std::move(others)), storages_(storages), templates_(device, layouts), memory_(others_, storages), homes_(others_, policy, device, storages, memory_) {}
  Gang(const Gang&) = delete;  // its parts refer to each other
  Gang& operator=(const Gang&) = delete;

  size_t size() const { return others_.size() + 1; }
  // Of the other devices, from 1.
  Rank& rank(int place) const { return *others_[static_cast<size_t>(place) - 1]; }
  // What the other devices know.
  GangTemplates& templates() { return templates_; }
  // What they hold, and where storages lie.
  GangMemory& memory() { return memory_; }
  GangHomes& homes() { return homes_; }
  // Of all devices; to be given before it is asked for.
  void add_up_by(std::unique_ptr<DeviceSums> sums) { sums_ = std::move(sums); }
  DeviceSums& sums() { return *sums_; }
  // What devices and links can do; to be given before it is asked for.
  void note_rates(DeviceRates rates) { rates_ = std::move(rates); }
  const DeviceRates& rates() const { return rates_; }

  // As FORGET, RENUMBER, SETTINGS and LIMIT say.
  void forget();
  void forget_operators();
  void settings(uint64_t bits);
  void limit(int64_t bytes);

  // The parts in which a call is carried out whose operator takes each item of its lists by itself: by the devices that its items lie on, and in as
  // many as a device has room for. None if it is carried out whole. Throws wire::WireError as making a plan does.
  std::vector<GangTemplates::Part> parts_of(uint64_t number, const wire::Words& words);

  // The device that the last calls were sent to, which may still be at work.
  int active() const { return active_; }
  void compute_at(int place) { active_ = place; }

  // Sends a call to the other device `place`, whose storages must be there; as `call`, but its results are the caller's to take for made.
  // `of`: the client's call, where this is a step of it.
  void send(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence, const Plan* of = nullptr);
  // As send; its results lie there alone.
  void call(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence);
  // Has the other devices free what a call makes.
  void withdraw(const Plan& plan, const wire::Words& words);
  // A storage that came while calls may still be at work.
  void note_new(uint64_t id);
  // Waits until all that was sent is carried out.
  struct Stopped {
    Failure failure;
    std::vector<uint64_t> never_made;  // came after the failing call, or of it; some may be gone
  };
  std::optional<Stopped> settle();
  // As settle, of calls whose results the caller withdraws or asks for again where they failed.
  struct Failed {
    int place;
    Failure failure;
  };
  std::vector<Failed> settle_each();
  void flush();

 private:
  // A call that was sent.
  struct Sent {
    int place;
    uint64_t call;                // its number at the other device
    uint64_t sequence;            // the client's
    const std::string* name;      // of the client's operator
    std::vector<uint64_t> fresh;  // storages that it makes, and that came after it
  };
  std::vector<Failed> failures();
  // Says of a failure on the other device `place` which call of the client it was.
  void name_failure(int place, Failure& failure) const;

  Ranks others_;
  Storages& storages_;
  GangTemplates templates_;
  GangMemory memory_;
  GangHomes homes_;
  std::unique_ptr<DeviceSums> sums_;
  DeviceRates rates_;
  int active_ = 0;
  std::vector<Sent> sent_;  // since all was settled
};

}  // namespace forebay::worker
