// Several devices of one session (a gang): where its storages lie, and which device carries out a call.
//
// Until a plan divides a step, one device computes at a time. A storage lies whole on one device, its home; a call runs where most of the
// bytes lie that it is given, and the rest is brought there. Before another device goes on, all that was sent to the one before is known to
// be carried out: so a failure is as precise as on one device. What no device has room for while a call runs lies on the first one's host: so all
// storages together may take the memory of all devices, and a call the memory of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/failure.h"
#include "call/plan.h"
#include "device/bulk_copy.h"
#include "device/device.h"
#include "device/storage.h"
#include "gang/rank.h"

namespace forebay::worker {

// Where storages of a session begin. kFill: where the first device has room, in steps of a quarter of each device's memory, so that what is made
// together lies together and every device keeps room for what comes of it. kScatter: on each device in turn, and calls likewise, to try what
// moves them. kDataParallel: as kFill, until a batch of rows comes again and again; then every device has a copy of what calls are given, and
// its part of the rows (data_parallel.h).
enum class Homes { kFill, kScatter, kDataParallel };

// How many words a call has for an argument.
size_t words_of(const wire::Argument& argument);
// Where the words of an argument begin among those of a call.
size_t word_of(const wire::Template& call, size_t argument);

class Gang {
 public:
  Gang(std::vector<std::unique_ptr<Rank>> others, Homes homes, const Device& device, Storages& storages, Layouts& layouts)
      : others_(std::move(others)), homes_(homes), device_(device), storages_(storages), layouts_(layouts) {}

  size_t size() const { return others_.size() + 1; }
  Homes homes() const { return homes_; }
  // Of the other devices, from 1.
  Rank& rank(int place) { return *others_[static_cast<size_t>(place) - 1]; }
  // The memory of each device, of a limit of all together.
  int64_t part_of(int64_t limit_bytes) const;

  void define_operator(const uint8_t* encoded, size_t bytes);
  void define_template(const wire::Template& source, c10::OperatorHandle op);
  void forget();
  const wire::Template& template_of(uint64_t number) const { return templates_[number]; }
  c10::OperatorHandle operator_of(uint64_t number) const { return handles_[number]; }
  // A template of this worker's own, until all are forgotten. Throws wire::WireError as making a plan does.
  uint64_t define_own(const wire::Template& source, c10::OperatorHandle op);
  Plan& own_plan(uint64_t definition) { return *slices_[definition - wire::kTemplatesMax].plan; }
  // An operator for templates of this worker's own, by its name after "aten::".
  struct Operator {
    uint64_t number;
    c10::OperatorHandle handle;
  };
  Operator own_operator(const std::string& name);
  // As SETTINGS and LIMIT say.
  void settings(uint64_t bits);
  void limit(int64_t bytes);

  // A call, or a part of one, with what defines it.
  struct Part {
    uint64_t definition;
    Plan* plan;
    wire::Words words;
  };
  // The parts in which a call is carried out whose operator takes each item of its lists by itself: by the devices that its items lie on, and in as
  // many as a device has room for.
  // None where it is carried out whole. Throws wire::WireError as making a plan does.
  std::vector<Part> parts_of(uint64_t number, const wire::Words& words);

  // The length of the lists of an operator that takes their items one by one; 0 for any other.
  size_t length_of_items(uint64_t number) const;
  // The storages of each item of such lists.
  std::vector<std::vector<uint64_t>> items_of(uint64_t number, const wire::Words& words) const;
  // Some of the items alone. Throws wire::WireError as making a plan does.
  Part part_of_items(uint64_t number, const wire::Words& words, const std::vector<size_t>& items);

  // The storages that a call is given, each once, in order.
  static std::vector<uint64_t> storages_of(const Plan& plan, const wire::Words& words);
  // Those of them that the call writes to.
  static std::vector<uint64_t> written_of(const Plan& plan, const wire::Words& words);
  // Whether the call writes to each tensor argument that has a storage.
  static std::vector<bool> writes_of(const Plan& plan);
  // Where a call is to be carried out that is given such storages and makes so many bytes more: 0 is this device, others from 1. None where no
  // device has room for it as it is: then, once all is settled, clear_place makes room. Throws CommandError where that cannot be.
  std::optional<int> place_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  int clear_place(const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // As clear_place, of a device.
  void clear(int place, const std::vector<uint64_t>& ids, int64_t fresh_bytes);
  // Moves storages but these from a device to others and the host, the largest first, until it has room for so many bytes and, as far as can be, for so
  // many more that an operator may keep while it runs. The other devices are left room for `left_bytes`. All must be settled.
  void relieve(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes = 0, int64_t left_bytes = 0);
  // Moves all storages but these from a device to the host. All must be settled.
  void empty(int place, const std::vector<uint64_t>& but);
  // How devices leave what they hold together, but these, until there is room: copies to one of them, and rows to the host.
  using Leave = std::function<void(const std::function<bool()>& has_room, const std::vector<uint64_t>& but)>;
  void leave_by(Leave copies, Leave rows) {
    leave_copies_ = std::move(copies);
    leave_rows_ = std::move(rows);
  }
  // Whether a call that fails for want of memory may be carried out again: it writes to nothing, or only to what it does not read.
  static bool is_repeatable(const Plan& plan, const wire::Words& words);
  // Whether what a call's operator keeps while it runs may be more than a device, or one of all, has room for.
  bool may_lack(int place, const Plan& plan) const;
  bool any_may_lack(const Plan& plan) const;
  // What the client is told where memory does not suffice: as a device said it, or this.
  std::string out_of_memory_text(const std::string& told) const;
  // What an operator may keep while it runs beside what it is given and makes: as much as its results and the largest of its arguments, as convolutions
  // do, up to a third of a device's memory.
  int64_t scratch_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const;
  // Whether these storages lie on a device, but for those that hold nothing yet. If not, all must be settled before they are gathered there.
  bool is_gathered(const std::vector<uint64_t>& ids, int place) const;
  // Throws CommandError; then they lie where they lay, or where they were wanted.
  void gather(const std::vector<uint64_t>& ids, int place);
  // As gather, of one.
  void bring(uint64_t id, int place);
  // Gives a storage that holds nothing a home.
  void give_home(uint64_t id);

  // The device that the last calls were sent to, which may still be at work.
  int active() const { return active_; }
  void compute_at(int place) { active_ = place; }

  // Sends a call to the other device `place`, whose storages must be there; as `call`, but its results are the caller's to take for made.
  // `of`: the client's call, where this is a step of it.
  void send(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence, const Plan* of = nullptr);
  // As send; its results lie there alone.
  void call(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence);
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

  // Bytes that the other devices hold beside those that are counted: copies.
  int64_t& copied_bytes() { return copied_bytes_; }
  // Whether each device has room for so many bytes more.
  bool all_have_room(int64_t bytes) const;
  bool has_room(int place, int64_t bytes) const { return bytes <= room(place); }
  int roomiest() const;
  // As all_have_room. Throws CommandError if not.
  void demand_room(int64_t bytes) const;
  // Throws CommandError if something that was sent there failed.
  void demand(Rank& rank);

  // Bytes of a storage that lies on another device. All must be settled. Throw CommandError.
  void read(uint64_t id, const Entry& entry, int64_t offset, int64_t bytes, uint8_t* target);
  void write(uint64_t id, const Entry& entry, int64_t offset, const uint8_t* data, int64_t bytes);
  void copy(uint64_t target, int64_t target_offset, uint64_t source, int64_t source_offset, int64_t bytes);

  // Whole, in memory of the host's. `period`: as HostMemory has it.
  void keep_on_host(uint64_t id, c10::Storage memory, int64_t period);

  // Parking and back: all storages' bytes come to this process's memory, beside the device's; and get homes again.
  void fetch_all();
  void spread();

 private:
  static constexpr int64_t kTemporaries = 8;  // what operators keep while they run is hardly ever so many times what they are given and make

  // A call that was sent.
  struct Sent {
    int place;
    uint64_t call;                // its number at the other device
    uint64_t sequence;            // the client's
    const std::string* name;      // of the client's operator
    std::vector<uint64_t> fresh;  // storages that it makes, and that came after it
  };
  // What a call is given and makes, in bytes.
  struct Load {
    std::vector<int64_t> there;  // at each device
    int64_t bytes;               // given
    int64_t fresh_bytes;
    int64_t scratch_bytes;
    // At a device, beside what lies there.
    int64_t needed(int place) const { return fresh_bytes + bytes - there[static_cast<size_t>(place)]; }
  };
  struct Slice {
    Definition definition;
    std::unique_ptr<Plan> plan;
  };

  // The end of the message where a call finds no room.
  std::string fullest() const;
  int64_t used(int place) const;
  std::vector<int64_t> used() const;
  Load load_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const;
  int best_place(const Load& load);
  int64_t room(int place) const { return part_of(storages_.limit_bytes()) - used(place); }
  // As room, without what operators keep for the time that they run, as far as it can be left free.
  int64_t spare_room(int place, int64_t scratch_bytes) const { return room(place) - std::max(scratch_bytes, part_of(storages_.limit_bytes()) / 8); }
  std::vector<uint64_t> movable(int place, const std::vector<uint64_t>& but);
  void move(uint64_t id, int place);
  void bring_to_host(uint64_t id);
  int home_with_room(int64_t bytes, const std::vector<int64_t>& used);
  void for_each_piece(uint64_t id, const BulkCopy::Take& take);
  std::vector<Failed> failures();
  std::vector<std::vector<size_t>> divided(const std::vector<std::vector<int64_t>>& bytes) const;
  int home_for(int64_t bytes, const std::vector<int64_t>& used);
  // As relieve. Throws CommandError where there is no room even so.
  void make_room(int place, int64_t bytes, const std::vector<uint64_t>& but, int64_t scratch_bytes);
  // Says of a failure on the other device `place` which call of the client it was.
  void name_failure(int place, Failure& failure) const;
  const Definition& definition_of(uint64_t op) const { return op < wire::kOperatorsMax ? operators_[op] : own_operators_[op - wire::kOperatorsMax]; }
  Slice& slice_of(uint64_t number, const std::vector<size_t>& items);

  std::vector<std::unique_ptr<Rank>> others_;
  Homes homes_;
  int turn_ = 0;  // kScatter
  size_t hosted_turn_ = 0;
  const Device& device_;
  Storages& storages_;
  Layouts& layouts_;
  int active_ = 0;
  int64_t copied_bytes_ = 0;
  int64_t hosted_bytes_ = 0;  // of storages that lie on the host
  Leave leave_copies_, leave_rows_;
  std::vector<Sent> sent_;  // since all was settled
  std::vector<Definition> operators_;
  std::vector<Definition> own_operators_;  // numbers from kOperatorsMax on
  std::unordered_map<std::string, Operator> own_operator_numbers_;
  std::vector<c10::OperatorHandle> handles_;
  std::vector<wire::Template> templates_;
  std::vector<Definition> definitions_;  // of the templates
  std::unordered_map<std::string, uint64_t> slice_numbers_;  // by a template's number and its items
  std::unordered_map<std::string, uint64_t> own_numbers_;    // by what was encoded
  std::vector<Slice> slices_;
};

}  // namespace forebay::worker
