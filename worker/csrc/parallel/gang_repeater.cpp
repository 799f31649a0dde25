#include "parallel/gang_repeater.h"

#include <algorithm>
#include <limits>
#include <list>
#include <memory>

#include "call/call_storages.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

constexpr int64_t kLetGoPart = 32;  // of a device's memory
constexpr int64_t kFreePart = 16;  // of a device's memory, that a call is to find free
constexpr uint64_t kFirstDraft = std::numeric_limits<uint64_t>::max() - (uint64_t{1} << 21);  // below those of Shares and Slices

// A call's words, of which those of results that are not wanted, and of what else the call writes to, name storages that go with this.
class RepeatedWords {
 public:
  RepeatedWords(Storages& storages, const RecordedCall& call, const std::vector<uint64_t>& results) : words(call.words), storages_(storages) {
    if (call.plan.new_storages == 0) return;
    for_each_made(call.plan, call.words, [&](size_t, uint64_t id) {
      made_.push_back(std::find(results.begin(), results.end(), id) == results.end() ? draft() : id);
    });
    size_t made = 0;
    for (size_t index = 0; index < words.size(); ++index) {
      if (call.plan.words[index] == wire::Word::kNew) words[index] = made_[made++];
    }
    const auto writes = writes_of(call.plan);
    size_t tensor = 0;
    for_each_tensor(call.plan, call.words, [&](size_t place, uint64_t id) {
      if (!writes[tensor++]) return;
      words[place] = draft();
      storages_.insert(words[place], storages_.at(id).bytes());
    });
  }
  ~RepeatedWords() {
    for (const uint64_t id : drafts_) storages_.withdraw(id);
  }
  RepeatedWords(const RepeatedWords&) = delete;
  RepeatedWords& operator=(const RepeatedWords&) = delete;
  // Nothing of it stays.
  void withdraw() {
    for (const uint64_t id : made_) storages_.withdraw(id);
  }

  wire::Words words;

 private:
  uint64_t draft() {
    uint64_t id = drafts_.empty() ? kFirstDraft : drafts_.back() - 1;
    while (storages_.has(id)) --id;
    drafts_.push_back(id);
    return id;
  }

  Storages& storages_;
  std::vector<uint64_t> made_;
  std::vector<uint64_t> drafts_;
};

}  // namespace

int64_t GangRepeater::lacking(const Need& need, Room room) const {
  const int64_t of_all = lacking_of_all(need.bytes);
  if (need.plan == nullptr) return of_all;
  const auto ids = storages_of(*need.plan, *need.words);
  const bool is_divided = gang_.data_parallel() != nullptr && gang_.data_parallel()->is_on();
  return std::max(of_all, is_divided ? lacking_of_each(*need.plan, ids, room) : lacking_of_one(*need.plan, ids, room));
}

int64_t GangRepeater::lacking_of_all(int64_t bytes) const { return bytes - (storages_.limit_bytes() - storages_.used_bytes() + storages_.absent_bytes()); }

// What no device holds alone lies there as rows or a copy; the rest comes as a copy.
int64_t GangRepeater::lacking_of_each(const Plan& plan, const std::vector<uint64_t>& ids, Room room) const {
  const GangMemory& memory = gang_.gang().memory();
  const auto devices = static_cast<int64_t>(memory.devices());
  const bool in_rows = std::any_of(ids.begin(), ids.end(), [&](uint64_t id) { return gang_.data_parallel()->is_in_rows(id); });
  int64_t bytes = in_rows ? plan.new_bytes / devices : plan.new_bytes;
  std::vector<int64_t> there(memory.devices(), 0);
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (entry.share() != nullptr) continue;
    bytes += entry.bytes();
    if (entry.holds_anything() && entry.home() != kOnHost) there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  const int64_t least = memory.part_of(storages_.limit_bytes()) / kFreePart;
  const int64_t spare = room == Room::kLeast ? least : std::max(memory.scratch_of(ids, plan.new_bytes), least);
  int64_t lacking = std::numeric_limits<int64_t>::min();
  for (int place = 0; place < static_cast<int>(devices); ++place) {
    lacking = std::max(lacking, bytes - there[static_cast<size_t>(place)] + spare - memory.room(place));
  }
  return lacking;
}

int64_t GangRepeater::lacking_of_one(const Plan& plan, const std::vector<uint64_t>& ids, Room room) const {
  const GangMemory& memory = gang_.gang().memory();
  const auto load = memory.load_of(ids, plan.new_bytes);
  int64_t lacking = std::numeric_limits<int64_t>::max();
  for (int place = 0; place < static_cast<int>(memory.devices()); ++place) {
    lacking = std::min(lacking, load.needed(place) - (room == Room::kLeast ? memory.room(place) : memory.spare_room(place, load.scratch_bytes)));
  }
  return lacking;
}

int64_t GangRepeater::least_bytes() const { return gang_.gang().memory().part_of(storages_.limit_bytes()) / kLetGoPart; }

// What lies on the host gives room to the session, to no device.
bool GangRepeater::gives_room(const Entry& entry) const {
  return entry.holds_anything() && (entry.home() != kOnHost || lacking_of_all(storages_.limit_bytes() / kLetGoPart) > 0);
}

void GangRepeater::begin() {
  if (!gang_.begin_repeats()) throw CommandError(wire::FailureCode::kOperator, "a call before it failed");
}

void GangRepeater::repeat(const RecordedCall& call, const std::vector<uint64_t>& results) {
  std::list<StorageAside> aside;
  if (call.plan.new_storages > 0) {
    for (const uint64_t id : results) aside.emplace_back(storages_, id);
  }
  RepeatedWords repeated(storages_, call, results);
  try {
    gang_.repeat(call.number, call.plan, repeated.words);
  } catch (...) {
    repeated.withdraw();
    throw;
  }
}

}  // namespace forebay::worker
