// One client's session: reads commands, one after the other, and has them carried out. Knows no socket and no lease.
//
// A session is made of parts, which share its storages and `Effects`, the one place where calls take effect. This class reads steps and
// definitions, and carries out single calls (tier 1). Whatever carries out several steps at once is behind the `SegmentTracker`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/replies.h"
#include "base/running.h"
#include "call/call.h"
#include "call/effects.h"
#include "call/templates.h"
#include "collectives/collectives.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "parallel/gang_caller.h"
#include "session/checkpoints.h"
#include "session/image.h"
#include "session/recomputed_calls.h"
#include "session/traces_receiver.h"
#include "session/transfers.h"
#include "session/user_code.h"
#include "tier2/segment_tracker.h"
#include "tier2/tier1.h"

namespace forebay::worker {

class Session final : private StepRunner {
 public:
  Session(Device& device, Replies& replies, GroupHost& group_host);

  // Computes on other devices, too; of a session that has done nothing yet. `rates`: what such devices can do, if that was measured before.
  void join(std::vector<std::unique_ptr<Rank>> others, Homes homes, GroupHost& group_host, const std::optional<DeviceRates>& rates);

  // The parts of the session.
  Running& running() { return caller_.running(); }
  GangCaller& gang() { return gang_; }
  Storages& storages() { return storages_; }
  SegmentTracker& segments() { return segments_; }
  UserCode& user_code() { return user_code_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  Collectives& collectives() { return collectives_; }
  ImageReceiver& image() { return image_; }
  Transfers& transfers() { return transfers_; }

  // Whether what `execute` does next runs only under a lease; `in` is what it will read.
  bool is_device_work(wire::Reader in) const;
  // Carries out the next command but HELLO and MARK, or the next step that a FOLLOW announced. Throws wire::WireError for what is
  // not the protocol.
  void execute(wire::Reader& in);
  // Whether a FOLLOW has announced steps that are still to be carried out.
  bool is_following() const { return following_ > 0; }
  // The segment ends with the last step. To be called before anything but a step is carried out by a part of the session.
  void end_segment();
  // The program pauses within a segment: carries out its steps that were deferred.
  void release_late() { segments_.abandon(freed_); }

  // As the pool says: what the session may hold.
  void set_limit(int64_t bytes);
  // Waits for the device. A failure of the device stops the session.
  void settle() override;
  int64_t park(const ParkingSpace& space, const std::string& spill_directory);
  void restore();
  // The session as it is now. `packing`: of its checkpoints.
  void send_image(Packing packing, const SendImage& send);

 private:
  // How a command is carried out, and what it does to the steps before it.
  struct Command;
  static const Command& command_of(uint8_t opcode);

  void define_operator(wire::Reader& in);
  void define_template(wire::Reader& in);
  // Of all that was defined, as of a worker that was told nothing yet; or of templates and steps.
  void forget(bool all);
  void step(wire::Reader& in);
  void call(wire::Reader& in);
  void allocate(wire::Reader& in);
  void free(wire::Reader& in);
  void cut(wire::Reader& in);
  void ask(wire::Reader& in);
  void report_segments(wire::Reader& in);
  void settings(uint64_t bits);

  // Each of its devices to its part.
  void hold_to(int64_t bytes);
  // A step comes in full: its words are read.
  void take_new(uint64_t key, const std::vector<wire::Word>& kinds);
  // A step comes again, but for the changes as expected.
  void take_again(wire::Step& step);
  // Tier 1.
  void run(uint64_t key, const wire::Words& words) override;
  // These return why nothing is made, or null.
  Cause carry_out(uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence);
  Cause make_storage(uint64_t id, int64_t bytes);
  Cause answer(Plan& plan, uint64_t first_storage, uint64_t sequence, wire::Writer& answer);

  Device& device_;
  Replies& replies_;
  GangCaller gang_;  // outlives the storages, which may lie on its devices
  Storages storages_;
  Templates templates_;
  Caller caller_;
  Effects effects_;
  RecomputedCalls recomputed_;
  Timing timing_;
  Tier1 tier1_;
  SegmentTracker segments_;
  Transfers transfers_;
  Collectives collectives_;
  UserCode user_code_;
  GangImage gang_image_;
  Checkpoints checkpoints_;
  ImageReceiver image_;
  wire::Traces traces_;
  wire::Words words_;                  // of the present step
  wire::Words freed_;                  // since the last step
  bool freed_all_ = false;             // an empty FREE said that no more come before the next step
  std::vector<wire::Change> changes_;  // of the present step
  TracesReceiver arriving_traces_{segments_, image_};
  uint64_t following_ = 0;             // steps that a FOLLOW announced, and that are still to come
  int64_t given_bytes_ = 0;            // by the pool
};

}  // namespace forebay::worker
