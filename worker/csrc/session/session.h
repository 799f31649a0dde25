// One client's session: carries out commands, one after the other. Knows no socket and no lease.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <forebay/image.h>
#include <forebay/segments.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "base/shared_memory.h"
#include "call/call.h"
#include "call/kernel.h"
#include "call/plan.h"
#include "collectives/process_group.h"
#include "device/device.h"
#include "device/storage.h"
#include "device/timing.h"
#include "gang/data_parallel.h"
#include "gang/gang.h"
#include "gang/gang_work.h"
#include "tier2/candidate.h"
#include "tier2/partition.h"
#include "tier2/threads.h"

namespace forebay::worker {

// Where replies go; `payload` follows the head in the same frame and need not outlive the call.
class Replies {
 public:
  virtual ~Replies() = default;
  virtual void send(const wire::Writer& head, const void* payload, size_t payload_bytes) = 0;
  // Whether the client is on this host, and can be handed a descriptor.
  virtual bool can_share() const = 0;
  // As send, with a descriptor that the client gets a copy of.
  virtual void share(const wire::Writer& head, int descriptor) = 0;
  // How long the worker has carried out commands, up to now.
  virtual uint64_t busy_ns() = 0;
};

// Bytes of a storage.
struct StorageRange {
  uint64_t id = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

class Session {
 public:
  Session(Device& device, Replies& replies, GroupHost& group_host);

  // Computes on other devices, too; of a session that has done nothing yet.
  void join(std::vector<std::unique_ptr<Rank>> others, Homes homes);
  // Adds the connections to other devices to what is polled, last; and throws RankLost where one of them has ended.
  void watch_others(std::vector<pollfd>& polled) const;
  void check_others(const std::vector<pollfd>& polled) const;
  // Waits until other devices have done what they were sent, and tells the client if something failed.
  void settle_gang();

  const Running& running() const { return std::as_const(caller_).running(); }
  Running& running() { return caller_.running(); }

  // Whether what `execute` does next runs only under a lease; `in` is what it will read.
  bool is_device_work(wire::Reader in) const;

  // Carries out the next command but HELLO and MARK, or the next step that a FOLLOW announced. Throws wire::WireError for what is
  // not the protocol.
  void execute(wire::Reader& in);
  // Whether a FOLLOW has announced steps that are still to be carried out.
  bool is_following() const { return following_ > 0; }
  // Whether what was carried out last went through the shared area: the next piece is near.
  bool moves_bulk() const { return moves_bulk_; }
  // Leaves its process groups: the others' collectives fail, and say why.
  void end_groups(const std::string& why);
  // A segment of the traces ended.
  void cut() { end_segment(); }

  // Tier 2: session_compiled.cpp. What a compiling process is to hear of a segment.
  struct Offer {
    enum class Kind { kSegment, kDue, kBarred, kDeclined, kTimed, kForgotten, kKernel, kLeaving, kBrought };
    Kind kind;
    uint64_t number;
    std::string text;  // kSegment: its description; kBarred, kDeclined: why; kTimed: what its library takes of tier 1's time, nothing where it is not quicker; kKernel: as its client describes it; kBrought: what came along from another worker
    std::shared_ptr<Library> library{};  // kForgotten: that it had, if any; whoever takes the offer closes it
  };
  // Segments may get libraries, once the device has worked so long on one; of a session that has done nothing yet.
  void compile(uint64_t due_ns);
  std::vector<Offer> take_offers() { return std::exchange(offers_, {}); }
  bool has_offers() const { return !offers_.empty(); }
  // As Candidate::take has it.
  void take_library(uint64_t number, std::shared_ptr<Library> library, const std::string& note, bool is_shared, std::optional<double> took);
  void refuse_library(uint64_t number, const std::string& why);
  void widen_segment(uint64_t number, const WordPlaces& changing);
  // Kernels of programs: session_kernels.cpp. Of a session that has done nothing yet.
  void take_kernels(KernelHost host);
  const std::string& no_kernels() const;
  void take_kernel(uint64_t number, const std::string& name, std::vector<KernelParameter> parameters);
  void refuse_kernel(uint64_t number, wire::FailureCode code, const std::string& why);
  // The session leaves: whoever makes libraries is to say what goes along, for another worker's compiling process.
  void offer_leaving();
  void take_along(std::string libraries) { along_ = std::move(libraries); }
  // The session has come here, with what went along.
  void offer_brought();
  // Until when steps are held back, if any are; then they are to be carried out.
  std::optional<Clock::time_point> held_until();
  // Until when those that are still to come need not be read: it took them longer the last times.
  std::optional<Clock::time_point> quiet_until() const;
  void release_late();

  // A WRITE whose payload is still on its way. nullopt: read it into memory first, and execute it.
  struct Upload {
    uint64_t storage;
    int64_t offset;
    int64_t bytes;
    c10::Storage memory;  // where the payload goes: the storage's own, or what is copied to it by finish_upload
    int64_t at;
    uint8_t* target() const { return static_cast<uint8_t*>(memory.mutable_data()) + at; }
  };
  std::optional<Upload> begin_upload(uint64_t storage, uint64_t offset, size_t bytes);
  // The session may have been parked and restored since.
  void finish_upload(const Upload& upload);

  // As the pool says: what the session may hold.
  void set_limit(int64_t bytes);
  int64_t used_bytes() const { return storages_.used_bytes(); }
  int64_t limit_bytes() const { return storages_.limit_bytes(); }
  // Waits for the device. A failure of the device stops the session.
  void settle();
  int64_t park(const ParkingSpace& space, const std::string& spill_directory);
  bool is_parked() const { return storages_.parked(); }
  int64_t spilled_bytes() const { return storages_.spilled_bytes(); }
  void restore();

  // Moving: image.cpp. `send` gets bodies of frames that answer a FETCH, of a parked session: an opcode's and what comes with it, and bytes.
  void send_image(const std::function<void(const wire::Writer& head, const uint8_t* payload, size_t payload_bytes)>& send);
  // The image that comes is kept off the device.
  void stay_parked() { stays_parked_ = true; }
  // What comes in answer to a FETCH, of a session that has done nothing yet. Throws wire::WireError, CommandError where it does not fit here.
  void take_image(wire::Reader& frame);
  // Where the next bytes of the image go, and how many at most; none once it is whole. They are put in place by `received`.
  struct Room {
    uint8_t* data = nullptr;
    size_t bytes = 0;
  };
  Room image_room();
  void received(size_t bytes);
  bool has_image() const { return image_ && image_->is_announced() && image_->next == image_->storages.size(); }

 private:
  void define_operator(wire::Reader& in);
  void define_template(wire::Reader& in);
  void call(wire::Reader& in);
  void ask(wire::Reader& in);
  void allocate(wire::Reader& in);
  void resize(wire::Reader& in);
  void free(wire::Reader& in);
  void write(wire::Reader& in);
  void read(wire::Reader& in);
  void sync(wire::Reader& in);
  void tell_times(wire::Reader& in);
  void tell_segments(wire::Reader& in);
  void tell_gang(wire::Reader& in);
  void settings(wire::Reader& in);
  void limit(wire::Reader& in);
  // Each of its devices to its part.
  void hold_to(int64_t bytes);
  void share(wire::Reader& in);
  void write_shared(wire::Reader& in);
  void read_shared(wire::Reader& in);
  void copy(wire::Reader& in);
  void forget();
  void follow(wire::Reader& in);
  void step(wire::Reader& in);
  void cut(wire::Reader& in);
  void define_kernel(wire::Reader& in);
  void launch(wire::Reader& in);
  void launch(uint64_t number, const Kernel& kernel, const Grid& grid, const std::vector<KernelArgument>& arguments);
  void read_words(const std::vector<wire::Word>& kinds, wire::Reader& in);
  void come(uint64_t key, const std::vector<wire::Word>& kinds);
  void take(wire::Step& step);
  void run(uint64_t key);

  // Tier 2: session_compiled.cpp.
  bool compiles() const { return wants_libraries_ && (due_ns_ || (device_.has_graphs() && !gang_)); }
  bool holds_back(const wire::Step& step);
  Candidate* going_on(const wire::Step& step, bool held) const;
  bool note_step(wire::Step* step, bool held);
  void release();
  void free_before(size_t index);
  void replay(size_t begin, size_t end);
  void replay() { replay(0, path_.size()); }
  void complete();
  void describe(Candidate& candidate);
  bool fits(Candidate& candidate, Binding& binding);
  at::Tensor drawn(const Outline::Draw& draw, const std::pair<uint64_t, uint64_t>& seed_and_counter) const;
  std::vector<at::Tensor> library_inputs(const Candidate& candidate, const Binding& binding);
  const at::Tensor& windowed(const Candidate& candidate, const Binding& binding, size_t window);
  bool are_results(const Candidate& candidate, const std::vector<at::Tensor>& results) const;
  bool serve(Candidate& candidate, const Binding& binding);
  void settle_layouts(const Candidate& candidate, std::vector<at::Tensor>& results);
  void take_results(const Candidate& candidate, const Binding& binding, const std::vector<at::Tensor>& results);
  void prove(Candidate& candidate, const Binding& binding);
  std::string difference(Candidate& candidate, const Binding& binding, const std::vector<at::Tensor>& inputs, const std::vector<std::vector<at::Tensor>>& found);
  void bar(Candidate& candidate, const std::string& why);
  void end_segment();
  void note_end();
  void prove_arrived(Candidate& candidate);
  void choose_threads();
  void drop_candidates();
  void tell_forgotten(Candidate& candidate);
  bool make_room_for_candidate();
  wire::Standing standing_of(const wire::Step& end, uint64_t calls) const;
  void allocate(uint64_t id, int64_t bytes);
  void call(uint64_t number);

  // Tier 2 on an accelerator: session_graphs.cpp.
  void complete_by_graphs(Candidate& candidate);
  void record(Candidate& candidate);
  bool record(Recording& recording, const std::vector<Part>& parts, Candidate& candidate);
  void record_step(const wire::Step& step, bool frees, std::vector<uint64_t>& made);
  static bool is_result(const Entry& entry, const std::vector<Part>& parts);
  bool prepare(Recording& recording, const Recording::Binding& binding);
  bool place_input(Recording& recording, size_t number, const Recording::Binding& binding);
  void vacate(Recording::Place& place, const Recording& recording, const Recording::Binding& binding);
  bool launch(Recording& recording, const Recording::Binding& binding);
  bool replay_graphs(Candidate& candidate);
  void take_results(Recording& recording, const Recording::Binding& binding);
  void prove_graphs(Candidate& candidate);
  bool prove(Recording& recording, std::string& wrong);
  std::vector<at::Tensor> launch_and_undo(Recording& recording, const Recording::Binding& binding, const std::vector<at::Tensor>& before);
  at::Tensor flat(const Recording::Place& place, const c10::Storage& memory);
  int64_t graph_bytes() const;
  void drop_graphs();

  // Process groups: session_groups.cpp.
  class HostRange;
  void open_door(wire::Reader& in);
  void member(wire::Reader& in);
  void exchange(wire::Reader& in);
  void reduce(wire::Reader& in);
  void part(wire::Reader& in);
  StorageRange range_of(wire::Reader& in);
  std::vector<std::pair<size_t, StorageRange>> parcels_of(wire::Reader& in);
  std::vector<HostRange> host_ranges(const std::vector<StorageRange>& ranges);
  void collect(wire::Collective what, uint64_t number, const std::vector<StorageRange>& ranges,
               const std::function<void(ProcessGroup&, const std::vector<HostRange>&)>& carry_out);

  // With several devices: gang.h.
  void call_in_gang(uint64_t number, uint64_t sequence);
  // Where a batch was found: by all devices, or by this one.
  void call_divided(uint64_t number, Plan& plan, uint64_t sequence);
  // What devices hold together is whole on this one, but that copies stay where they are only read.
  void make_whole(const std::vector<uint64_t>& ids, bool only_read = false);
  void carry_out(uint64_t definition, Plan& plan, const wire::Words& words, uint64_t sequence);
  void carry_out_at(int place, uint64_t definition, Plan& plan, const wire::Words& words, uint64_t sequence);
  // Waits for all that was sent. Throws CommandError where it failed: the results are the caller's to withdraw.
  void demand_settled();
  // How long the calls of such a way take.
  wire::Work& work_of(const Way& way, const Plan& plan);
  // The device that carries out what is given such storages, which lie there then. None where something failed before.
  std::optional<int> gathered(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // Whether all that other devices were sent is carried out; else the session is stopped.
  bool is_settled();
  void never_make(const Plan& plan, const Cause& cause);
  // For an ASK, whose storages come to this device. False where a failure was the answer.
  bool gathered_here(uint64_t request, Plan& plan, uint64_t sequence);

  void send_storages(const std::function<void(const wire::Writer& head, const uint8_t* payload, size_t payload_bytes)>& send,
                     const std::vector<Storages::Item>& items);
  void admit(const wire::ImageStorage& told);
  void next_image_storage();

  Plan& plan_of(uint64_t number);
  void check_range(const Entry& entry, uint64_t offset, size_t bytes, const char* what) const;
  // What a READ of the range gives, on the host; nullopt where a failure was the answer. `held` keeps it there, also when the session is
  // parked while its client takes the answer.
  std::optional<const void*> readable(uint64_t request, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held);
  SharedMemory& shared();
  void heard(wire::Reader& in);
  // A command fails: nothing takes effect from here on until the client has heard of it.
  Cause stop(Failure failure);
  Cause stop(const CommandError& error, const std::string& op, uint64_t sequence);
  // For the exception being handled.
  Cause stop_now(const std::string& op, uint64_t sequence, const Plan* plan = nullptr);
  // For a command that uses what was never made.
  Cause stop_after(const Failure& cause);
  // Says so to the client, which may not ask anything for long.
  Cause announced(Cause cause);
  void tell(uint64_t request, const Failure& failure);
  void done(uint64_t request);

  // An image on its way in.
  struct Arrival {
    wire::ImageHead head;
    std::vector<Cause> causes;
    std::vector<wire::ImageStorage> storages;  // as they came; those with bytes get them in this order
    int64_t bytes = 0;       // of those with bytes
    size_t cause_bytes = 0;
    size_t next = 0;         // storage to be filled
    int64_t filled = 0;      // of it
    c10::Storage staging{nullptr};
    int64_t staged = 0;
    // Whether all but the bytes has come.
    bool is_announced() const { return causes.size() == head.causes && storages.size() == head.storages; }
  };

  Device& device_;
  Replies& replies_;
  GroupHost& group_host_;
  static const std::string kNoOperator;
  const std::string* sent_operator_ = &kNoOperator;  // of the last call that another device was sent
  std::unique_ptr<Gang> gang_;  // where there are several devices; outlives the storages, which may lie on them
  Storages storages_;
  Layouts layouts_;
  Caller caller_;
  std::unique_ptr<DataParallel> data_parallel_;
  Timing timing_;
  GangWork work_;
  std::optional<SharedMemory> shared_;
  std::vector<c10::OperatorHandle> operators_;
  std::vector<std::unique_ptr<Plan>> plans_;
  size_t plan_items_ = 0;
  size_t plan_bytes_ = 0;
  wire::Traces traces_;
  wire::Words words_;                  // of the present step
  wire::Words freed_;                  // since the last step
  bool freed_all_ = false;             // an empty FREE said that no more come before the next step
  std::vector<wire::Change> changes_;
  std::optional<uint64_t> due_ns_;     // where segments can be compiled
  bool wants_libraries_ = false;       // the program does
  std::vector<wire::Step*> path_;      // of this segment so far
  bool path_known_ = true;             // whether that is all of it
  std::vector<std::unique_ptr<Candidate>> candidates_;
  std::unordered_map<const wire::Step*, Candidate*> by_end_;
  std::optional<Clock::time_point> candidate_ended_;  // the last one that came
  uint64_t ends_ = 0;                  // of segments
  Candidate* holding_ = nullptr;       // whose steps, all of `path_`, are held back
  Clock::time_point held_since_{};
  Clock::time_point paused_since_{};
  size_t paused_before_ = 0;           // the step of `path_` that was waited for
  std::optional<Threads> threads_;     // where kernels take all processors of the host that the program is on, too
  bool planned_ = false;               // a library has carried this segment out
  uint64_t began_ns_ = 0;              // of this segment, as `busy_ns` counts
  uint64_t last_candidate_ = 0;
  std::vector<Offer> offers_;
  std::string along_;  // libraries, packed
  uint64_t following_ = 0;
  bool moves_bulk_ = false;
  int64_t given_bytes_ = 0;  // by the pool
  uint64_t failures_ = 0;  // so far
  uint64_t sequence_ = 0;  // of the next CALL or ASK
  Cause stopped_;          // the last failure, until the client has heard of it
  Cause lost_;             // why the device computes no more
  std::unique_ptr<Arrival> image_;
  bool stays_parked_ = false;
  std::unordered_map<uint64_t, std::unique_ptr<ProcessGroup>> groups_;
  KernelHost kernel_host_;
  std::unordered_map<uint64_t, Kernel> kernels_;
};

}  // namespace forebay::worker
