// Carries out the calls of a session with several devices: each goes to the device where its storages lie, or they come to it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <forebay/gang_work.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "call/call.h"
#include "call/effects.h"
#include "call/plan.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "parallel/data_parallel.h"
#include "gang/gang.h"
#include "gang/gang_work.h"

namespace forebay::worker {

// Of a session with one device, nothing but `is_on`, `work`, `settle`, `make_whole` and the two of polling may be used; they do nothing then.
class GangCaller {
 public:
  GangCaller(const Device& device, Storages& storages, Caller& caller, Effects& effects, Timing& timing)
      : device_(device), storages_(storages), caller_(caller), effects_(effects), timing_(timing) {}

  // From here on the session computes on other devices, too; it has done nothing yet.
  void join(std::vector<std::unique_ptr<Rank>> others, Homes homes, Layouts& layouts);
  bool is_on() const { return gang_ != nullptr; }
  Gang& gang() { return *gang_; }
  const Gang& gang() const { return *gang_; }
  GangWork& work() { return work_; }
  // How long calls took on all devices and on one, as TELL_GANG asks.
  wire::GangWork reported() const;

  // Adds the connections to other devices to what is polled, last; and throws RankLost where one of them has ended.
  void watch(std::vector<pollfd>& polled) const;
  void check(const std::vector<pollfd>& polled) const;

  // Waits until other devices have done what they were sent. If something failed, the session is stopped, and the client is told.
  void settle() {
    if (gang_) is_settled();
  }
  // As settle: whether all is carried out.
  bool is_settled();

  // What is told of storages that may be computed again (recomputation/): before they are read or written to; and of calls, from one on, that have had no
  // effect, and what they were to make.
  struct Recomputing {
    std::function<void(const std::vector<uint64_t>& ids, bool only_read)> use;
    std::function<void(uint64_t sequence, const std::vector<uint64_t>& never_made)> withdraw;
  };
  void recompute_by(Recomputing recomputing) { recomputing_ = std::move(recomputing); }

  // What devices hold together is whole on this one, but that copies stay where they are only read.
  void make_whole(const std::vector<uint64_t>& ids, bool only_read = false);
  // The device that carries out what is given such storages, which lie there then. None where something failed before.
  std::optional<int> gathered(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // Brings what an ASK is given to this device. If that fails, why.
  Cause gather_question(Plan& plan, const wire::Words& words, uint64_t sequence);
  // Bytes come from the client for all of a storage.
  void note_upload(uint64_t id) {
    if (data_parallel_) data_parallel_->batches().note_upload(id);
  }

  // Carries out a call. Returns why its results are never made, or null.
  Cause call(uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence);

  // Whether the last call took a batch out of data: carried out once more it would be divided in another way.
  bool took_batch() const { return took_batch_; }

  // Calls are to be carried out that were before. False where something failed.
  bool begin_repeats();
  // Carries out one. Throws what it throws, CommandError; its results are the caller's to withdraw.
  void repeat(uint64_t number, Plan& plan, const wire::Words& words);
  // They are carried out. Throws CommandError where one was not.
  void end_repeats();
  // Waits until none is being carried out.
  void give_up_repeats();

  // What finds how calls are divided; null where nothing does.
  DataParallel* data_parallel() { return data_parallel_.get(); }

  // All storages' bytes come to this process's memory. Devices have memory again; and what came gets homes.
  void park();
  void return_memory();
  void restore();
  // Templates have new numbers from here on.
  void forget();
  // And operators do.
  void forget_operators();

 private:
  // A call of the client's, or a part of one with other words.
  struct Sent {
    uint64_t definition;
    Plan& plan;
    const wire::Words& words;
    uint64_t sequence;
    bool is_part;
  };
  // These two throw what the call throws: its results are the caller's to withdraw.
  Cause carried_out(const Sent& call);
  // Where a batch was found: by all devices, or by this one.
  Cause call_divided(const Sent& call);
  Cause stop_now(const Sent& call) { return effects_.announced(effects_.stop_now(call.plan.op.schema().name(), call.sequence, &call.plan)); }
  void carry_out(const Sent& call);
  void carry_out_at(int place, const Sent& call);
  // Within a handler of what `carried_out` threw: where that was for want of memory on a device, tries it once more, by rows. Of a call that fails even so
  // it says why; or it throws that.
  Cause carried_out_by_rows(const Sent& call);
  Cause tried_by_rows(const Sent& call);
  // Of a call that comes for the first time.
  std::unique_ptr<TimedCall> timed_call(const Sent& call);
  // Waits for all that was sent. Throws CommandError where it failed: the results are the caller's to withdraw.
  void demand_settled();
  // How long the calls of such a way take.
  wire::Work& work_of(const Way& way, const Plan& plan);

  const Device& device_;
  Storages& storages_;
  Caller& caller_;
  Effects& effects_;
  Timing& timing_;
  std::unique_ptr<Gang> gang_;  // outlives the storages, which may lie on its devices
  std::unique_ptr<DataParallel> data_parallel_;
  GangWork work_;
  Recomputing recomputing_;
  bool is_repeating_ = false;
  bool took_batch_ = false;
  static const std::string kNoOperator;
  const std::string* sent_operator_ = &kNoOperator;  // of the last call that another device was sent
};

}  // namespace forebay::worker
