// A session's segments on an accelerator, recorded as graphs and handed over again (tier 2 there).
#include <algorithm>
#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>

#include "device/recurrent.h"
#include "session/session.h"
#include "tier2/proof.h"

namespace forebay::worker {

namespace {

constexpr int64_t kGraphsPart = 4;  // of the session's memory, the part that graphs may take at most: they keep what they compute with
const std::string kRunningGraph = "a graph of calls";

// While it lives, what this thread hands the device is recorded.
class RecordingScope {
 public:
  RecordingScope(const Device& device, DeviceGraph& graph, const DeviceGraph::Draws& draws) : device_(device), graph_(graph) {
    part_reserves();
    graph_.begin(draws);
    device_.record_into(&graph_);
  }
  ~RecordingScope() {
    if (ended_) return;
    try {
      end();
    } catch (const std::exception&) {  // what broke it off says why
    }
  }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
  void end() {
    ended_ = true;
    part_reserves();
    device_.record_into(nullptr);
    graph_.end();
  }

 private:
  const Device& device_;
  DeviceGraph& graph_;
  bool ended_ = false;
};

// Kernels that add in no fixed order do not give the same twice, and where all is rounding, that is as much as the result.
constexpr double kScatter = 32;

// To the bit; or but for rounding, or as far as two launches of the graph are apart.
bool is_as_expected(const at::Tensor& found, const at::Tensor& again, const at::Tensor& expected) {
  if (at::equal(found.view(at::kByte), expected.view(at::kByte)) || is_within_rounding(found, expected)) return true;
  return c10::isFloatingType(expected.scalar_type()) && farthest(found, expected) <= kScatter * farthest(found, again);
}

bool has_memory(const Entry& entry, const c10::Storage& memory) { return entry.has_memory() && memory && entry.memory().data() == memory.data(); }

}  // namespace

void Session::complete_by_graphs(Candidate& candidate) {
  switch (candidate.state()) {
    case Candidate::State::kDescribing:
      return record(candidate);
    case Candidate::State::kProving:
      return prove_graphs(candidate);
    default:
      break;
  }
  if (!candidate.by_tier_2()) return replay();
  planned_ = replay_graphs(candidate);
}

// Carries the segment out, and records what of it can be.
void Session::record(Candidate& candidate) {
  std::string why, wrong;
  auto parts = parts_of(path_, plans_, candidate.excluded(), why);
  int64_t bytes = 0;
  bool goes_on = true;
  for (Part& part : parts) {
    free_before(part.begin);
    if (part.recording && goes_on && !stopped_ && !lost_ && record(*part.recording, parts, candidate)) {
      bytes += part.recording->graph->bytes();
      goes_on = prove(*part.recording, wrong);
    } else {
      goes_on = goes_on && !part.recording;
      replay(part.begin, part.end);
    }
  }
  if (stopped_ || lost_) return;
  const bool is_any = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.recording.has_value(); });
  const int64_t room = storages_.limit_bytes() / kGraphsPart - graph_bytes();
  if (!wrong.empty()) {
    candidate.stay("its graph is wrong: " + wrong);
  } else if (!goes_on) {
    candidate.record_again("its graph could not be recorded");
  } else if (!is_any) {
    candidate.stay("too few calls of it in a row can be recorded" + (why.empty() ? "" : ": " + why));
  } else if (bytes > room) {
    candidate.stay("its graph keeps " + std::to_string(bytes >> 20) + " MiB of the device, and there is room for " + std::to_string(std::max<int64_t>(room, 0) >> 20));
  } else {
    candidate.take(std::move(parts), bytes);
  }
}

int64_t Session::graph_bytes() const {
  return std::accumulate(candidates_.begin(), candidates_.end(), int64_t{0}, [](int64_t sum, const auto& candidate) { return sum + candidate->graph_bytes(); });
}

void Session::drop_graphs() {
  for (const auto& candidate : candidates_) candidate->drop_graphs();
}

// Whether the steps could be recorded. Nothing of them is carried out.
bool Session::record(Recording& recording, const std::vector<Part>& parts, Candidate& candidate) {
  Recording::Binding binding;
  if (!recording.bind(path_, binding)) return false;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    if (place.moves && storages_.has(binding.ids[number]) && is_result(storages_.at(binding.ids[number]), parts)) place.moves = false;
  }
  if (!prepare(recording, binding)) return false;
  std::shared_ptr<DeviceGraph> graph;
  std::vector<uint64_t> made;
  size_t index = recording.begin();
  bool is_whole = false;
  try {
    graph = device_.make_graph();
    RecordingScope scope(device_, *graph, device_.draws_of(binding.draws));
    for (; index < recording.end(); ++index) record_step(*path_[index], index > recording.begin(), made);
    scope.end();
    is_whole = true;
  } catch (const std::exception& error) {
    candidate.exclude(std::min(index, recording.end() - 1), error.what());
  }
  for (size_t number = 0; number < recording.places.size() && is_whole; ++number) {
    auto& place = recording.places[number];
    if (place.is_made && !place.is_freed) place.memory = storages_.at(binding.ids[number]).memory();
  }
  for (const uint64_t id : made) storages_.withdraw(id);
  if (is_whole) recording.graph = graph;
  return is_whole;
}

// Whether a part of the segment that was recorded before has put it where it lies, and will each time.
bool Session::is_result(const Entry& entry, const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.recording || !part.recording->graph) continue;
    for (const auto& place : part.recording->places) {
      if (place.is_made && has_memory(entry, place.memory)) return true;
    }
  }
  return false;
}

// `made`: storages that the steps before have made, which alone are freed.
void Session::record_step(const wire::Step& step, bool frees, std::vector<uint64_t>& made) {
  for (const auto& slot : step.freed) {
    const auto found = std::find(made.begin(), made.end(), slot.last);
    if (!frees || found == made.end()) continue;
    storages_.free(slot.last);
    made.erase(found);
  }
  words_.clear();
  for (const auto& slot : step.slots) {
    words_.push_back(slot.last);
    if (slot.kind == wire::Word::kNew) made.push_back(slot.last);
  }
  if (wire::is_allocation(step.key)) {
    const auto bytes = static_cast<int64_t>(wire::key_value(step.key));
    storages_.check_room(bytes);
    storages_.insert(words_.front(), bytes);
    return;
  }
  Plan& plan = *plans_[wire::key_value(step.key)];
  caller_.bind(plan, words_);
  TORCH_CHECK(!caller_.unusable(), "it uses what was never made");
  caller_.run(plan);
}

// Puts what the graph is given to where it wants it. False where that cannot be: then tier 1 says what is wrong, if anything is.
bool Session::prepare(Recording& recording, const Recording::Binding& binding) {
  int64_t made = 0;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_made == storages_.has(id)) return false;
    if (place.is_made && !place.is_freed) made += place.bytes;
    if (!place.is_input) continue;
    const Entry& entry = storages_.at(id);
    if (entry.cause() || entry.shortfall() || (recording.graph && entry.bytes() != place.bytes)) return false;
    place.bytes = entry.bytes();
  }
  try {
    storages_.check_room(made);
    for (size_t number = 0; number < recording.places.size(); ++number) {
      if (recording.places[number].is_input && !place_input(recording, number, binding)) return false;
    }
    for (auto& place : recording.places) {
      if (place.is_made && place.memory) vacate(place, recording, binding);
    }
    for (const auto& check : recording.checks()) {
      caller_.hold_to_range(*check.plan, *check.range, storages_.at(binding.ids[check.place]), *check.layout, check.offset);
    }
  } catch (const CommandError&) {
    return false;
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

// False where an input is not where it was when the graph was recorded.
bool Session::place_input(Recording& recording, size_t number, const Recording::Binding& binding) {
  auto& place = recording.places[number];
  Entry& entry = storages_.at(binding.ids[number]);
  if (place.bytes == 0) return true;
  if (!entry.has_memory()) entry.touch(device_);
  if (!place.moves) {
    if (recording.graph && entry.memory().data() != place.address) return false;
    place.address = entry.memory().data();
    return true;
  }
  if (!place.memory) place.memory = device_.allocate(place.bytes, /*zeroed=*/false);
  if (!has_memory(entry, place.memory)) {
    vacate(place, recording, binding);
    device_.copy(place.memory, 0, entry.memory(), 0, place.bytes);
    entry.relocate(place.memory);
  }
  place.id = binding.ids[number];
  return true;
}

// The program may have kept what lies in the graph's memory since the last time: it moves out, unless the steps free it without a look at it.
void Session::vacate(Recording::Place& place, const Recording& recording, const Recording::Binding& binding) {
  if (place.id == 0 || !storages_.has(place.id)) return;
  Entry& entry = storages_.at(place.id);
  if (!has_memory(entry, place.memory)) return;
  const auto bound = std::find(binding.ids.begin(), binding.ids.end(), place.id);
  if (bound != binding.ids.end() && !recording.places[static_cast<size_t>(bound - binding.ids.begin())].is_input) return;
  auto memory = device_.allocate(entry.bytes(), /*zeroed=*/false);
  device_.copy(memory, 0, entry.memory(), 0, entry.bytes());
  entry.relocate(std::move(memory));
}

// False where the device failed: then the session is stopped.
bool Session::launch(Recording& recording, const Recording::Binding& binding) {
  for (size_t number = 0; number < recording.places.size(); ++number) {
    if (recording.places[number].is_written) storages_.at(binding.ids[number]).forget_numbers();
  }
  try {
    const Running::Call call(caller_.running(), kRunningGraph);
    recording.graph->replay(device_.draws_of(binding.draws));
    return true;
  } catch (const std::exception&) {
    announced(stop_now(kRunningGraph, sequence_));
    return false;
  }
}

// False where some part had to be carried out call by call that is recorded.
bool Session::replay_graphs(Candidate& candidate) {
  bool fits = true;
  for (Part& part : candidate.parts()) {
    free_before(part.begin);
    Recording::Binding binding;
    if (!part.recording || !fits || stopped_ || lost_ || !part.recording->bind(path_, binding) || !prepare(*part.recording, binding)) {
      fits = fits && !part.recording;
      replay(part.begin, part.end);
      continue;
    }
    launch(*part.recording, binding);
    take_results(*part.recording, binding);
  }
  if (!fits && !stopped_ && !lost_) candidate.record_again("numbers changed, or tensors lie elsewhere");
  return fits;
}

void Session::take_results(Recording& recording, const Recording::Binding& binding) {
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_freed && !place.is_made) storages_.free(id);
    if (place.is_made && !place.is_freed) {
      if (stopped_) {
        storages_.insert_failed(id, stopped_);
      } else if (Entry& entry = storages_.insert(id, place.bytes); place.memory) {
        entry.replace(place.memory);
      }
    }
    place.id = id;
  }
  sequence_ += recording.calls();
}

void Session::prove_graphs(Candidate& candidate) {
  std::string wrong;
  bool fits = true;
  for (Part& part : candidate.parts()) {
    free_before(part.begin);
    if (part.recording && fits && !stopped_ && !lost_) {
      fits = prove(*part.recording, wrong);
    } else {
      replay(part.begin, part.end);
    }
  }
  if (stopped_ || lost_) return;
  if (!wrong.empty()) {
    candidate.stay("its graph is wrong: " + wrong);
  } else if (fits) {
    candidate.proved();
  } else {
    candidate.record_again("there was no room to hold its graph against tier 1, or tensors lie elsewhere");
  }
}

// Hands the graph over twice, puts back what was there before, and has tier 1 do the same. False where there is nothing to compare.
bool Session::prove(Recording& recording, std::string& wrong) {
  Recording::Binding binding;
  std::vector<at::Tensor> before, found, again;
  const at::AutoDispatchBelowADInplaceOrView guard;
  bool fits = recording.bind(path_, binding) && prepare(recording, binding);
  try {
    for (size_t number = 0; number < recording.places.size() && fits; ++number) {
      const auto& place = recording.places[number];
      if (place.is_written && place.bytes > 0) before.push_back(flat(place, storages_.at(binding.ids[number]).memory()).clone());
    }
    if (fits) found = launch_and_undo(recording, binding, before);
    if (fits && !stopped_) again = launch_and_undo(recording, binding, before);
  } catch (const c10::Error&) {  // no room
    fits = false;
  }
  replay(recording.begin(), recording.end());
  if (!fits || stopped_ || lost_) return false;
  size_t next = 0;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    if (!place.has_bytes_of_result()) continue;
    Entry& entry = storages_.at(binding.ids[number]);
    if (!entry.has_memory()) entry.touch(device_);
    const at::Tensor expected = flat(place, entry.memory());
    if (wrong.empty() && !is_as_expected(found[next], again[next], expected)) {
      wrong = "result " + std::to_string(next + 1) + " of " + std::to_string(found.size()) + ", " + c10::toString(expected.scalar_type()) + " of " +
              std::to_string(place.bytes) + " bytes, is not that of tier 1";
    }
    ++next;
    if (!place.is_made) continue;
    device_.copy(place.memory, 0, entry.memory(), 0, place.bytes);  // where parts that come later look for it
    entry.relocate(place.memory);
    place.id = binding.ids[number];
  }
  return true;
}

// What the graph makes of the session as it is, which it is again then. Throws c10::Error where there is no room, before anything changed.
std::vector<at::Tensor> Session::launch_and_undo(Recording& recording, const Recording::Binding& binding, const std::vector<at::Tensor>& before) {
  std::vector<at::Tensor> places, found;
  std::vector<at::Tensor> written;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    const auto& place = recording.places[number];
    if (place.bytes == 0 || !(place.is_written || place.is_made)) continue;
    const auto memory = place.is_made ? place.memory : storages_.at(binding.ids[number]).memory();
    if (place.is_written) written.push_back(flat(place, memory));
    if (!place.has_bytes_of_result()) continue;
    places.push_back(flat(place, memory));
    found.push_back(at::empty_like(places.back()));
  }
  if (!launch(recording, binding)) return {};
  for (size_t index = 0; index < places.size(); ++index) found[index].copy_(places[index]);
  for (size_t index = 0; index < written.size(); ++index) written[index].copy_(before[index]);
  return found;
}

// What lies there, as numbers in a row.
at::Tensor Session::flat(const Recording::Place& place, const c10::Storage& memory) {
  auto dtype = place.dtype == c10::ScalarType::Undefined ? c10::ScalarType::Byte : place.dtype;
  if (place.bytes % static_cast<int64_t>(c10::elementSize(dtype)) != 0) dtype = c10::ScalarType::Byte;
  Entry entry(place.bytes, nullptr);
  entry.replace(memory);
  return entry.view(device_, *layouts_.intern({static_cast<uint8_t>(dtype), 0, {place.bytes / static_cast<int64_t>(c10::elementSize(dtype))}, {1}}), 0);
}

}  // namespace forebay::worker
