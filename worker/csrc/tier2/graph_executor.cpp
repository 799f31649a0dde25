#include "tier2/graph_executor.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>

#include "device/recurrent.h"
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

bool has_memory(const Entry& entry, const c10::Storage& memory) { return entry.memory() && memory && entry.memory().data() == memory.data(); }

int64_t bytes_of(const Candidates& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), int64_t{0}, [](int64_t sum, const auto& candidate) { return sum + candidate->graphs().bytes; });
}

}  // namespace

void GraphExecutor::prepare(Candidate& candidate, const Candidates& all) {
  std::string why, wrong;
  auto parts = parts_of(candidate.path(), context_.templates.plans(), candidate.graphs().excluded, why);
  bool goes_on = true;
  for (Part& part : parts) {
    context_.tier1.free_before(candidate.path(), part.begin);
    if (part.recording && goes_on && context_.effects.goes_on() && record(*part.recording, parts, candidate)) {
      goes_on = verify(*part.recording, candidate.path(), wrong);
    } else {
      goes_on = goes_on && !part.recording;
      context_.tier1.run(candidate.path(), part.begin, part.end);
    }
  }
  if (!context_.effects.goes_on()) return;
  settle_recorded(candidate, std::move(parts), why, wrong, goes_on, context_.storages.limit_bytes() / kGraphsPart - bytes_of(all));
}

void GraphExecutor::settle_recorded(Candidate& candidate, std::vector<Part> parts, const std::string& why_not, const std::string& wrong, bool is_complete, int64_t room_bytes) {
  const bool is_any = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.recording.has_value(); });
  int64_t bytes = 0;
  for (const Part& part : parts) {
    if (part.recording && part.recording->graph) bytes += part.recording->graph->bytes();
  }
  if (!wrong.empty()) {
    candidate.stay("its graph is wrong: " + wrong);
  } else if (!is_complete) {
    candidate.record_again("its graph could not be recorded");
  } else if (!is_any) {
    candidate.stay("too few calls of it in a row can be recorded" + (why_not.empty() ? "" : ": " + why_not));
  } else if (bytes > room_bytes) {
    candidate.stay("its graph keeps " + std::to_string(bytes >> 20) + " MiB of the device, and there is room for " + std::to_string(std::max<int64_t>(room_bytes, 0) >> 20));
  } else {
    candidate.graphs().parts = std::move(parts);
    candidate.graphs().bytes = bytes;
    candidate.recorded();
  }
}

bool GraphExecutor::record(Recording& recording, const std::vector<Part>& parts, Candidate& candidate) {
  Storages& storages = context_.storages;
  Recording::Binding binding;
  if (!recording.bind(candidate.path(), binding)) return false;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    if (place.moves && storages.has(binding.ids[number]) && is_result(storages.at(binding.ids[number]), parts)) place.moves = false;
  }
  if (!prepare_inputs(recording, binding)) return false;
  std::shared_ptr<DeviceGraph> graph;
  std::vector<uint64_t> made;
  size_t index = recording.begin();
  bool is_whole = false;
  try {
    graph = context_.device.make_graph();
    RecordingScope scope(context_.device, *graph, context_.device.draws_of(binding.draws));
    for (; index < recording.end(); ++index) record_step(*candidate.path()[index], index > recording.begin(), made);
    scope.end();
    is_whole = true;
  } catch (const std::exception& error) {
    candidate.graphs().exclude(std::min(index, recording.end() - 1), error.what());
  }
  for (size_t number = 0; number < recording.places.size() && is_whole; ++number) {
    auto& place = recording.places[number];
    if (place.is_made && !place.is_freed) place.memory = storages.at(binding.ids[number]).memory();
  }
  for (const uint64_t id : made) storages.withdraw(id);
  if (is_whole) recording.graph = graph;
  return is_whole;
}

bool GraphExecutor::is_result(const Entry& entry, const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.recording || !part.recording->graph) continue;
    for (const auto& place : part.recording->places) {
      if (place.is_made && has_memory(entry, place.memory)) return true;
    }
  }
  return false;
}

void GraphExecutor::record_step(const wire::Step& step, bool frees, std::vector<uint64_t>& made) {
  Storages& storages = context_.storages;
  for (const auto& slot : step.freed) {
    const auto found = std::find(made.begin(), made.end(), slot.last);
    if (!frees || found == made.end()) continue;
    storages.free(slot.last);
    made.erase(found);
  }
  wire::Words words;
  for (const auto& slot : step.slots) {
    words.push_back(slot.last);
    if (slot.kind == wire::Word::kNew) made.push_back(slot.last);
  }
  if (wire::is_allocation(step.key)) {
    const auto bytes = static_cast<int64_t>(wire::key_value(step.key));
    storages.check_room(bytes);
    storages.insert(words.front(), bytes);
    return;
  }
  Plan& plan = context_.templates.known(wire::key_value(step.key));
  context_.caller.bind(plan, words);
  TORCH_CHECK(!context_.caller.unusable(), "it uses what was never made");
  context_.caller.run(plan);
}

bool GraphExecutor::has_storages(Recording& recording, const Recording::Binding& binding, int64_t& made_bytes) {
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_made == context_.storages.has(id)) return false;
    if (place.is_made && !place.is_freed) made_bytes += place.bytes;
    if (!place.is_input) continue;
    const Entry& entry = context_.storages.at(id);
    if (entry.cause() || entry.shortfall() || (recording.graph && entry.bytes() != place.bytes)) return false;
    place.bytes = entry.bytes();
  }
  return true;
}

bool GraphExecutor::prepare_inputs(Recording& recording, const Recording::Binding& binding) {
  int64_t made_bytes = 0;
  if (!has_storages(recording, binding, made_bytes)) return false;
  try {
    context_.storages.check_room(made_bytes);
    for (size_t number = 0; number < recording.places.size(); ++number) {
      if (recording.places[number].is_input && !place_input(recording, number, binding)) return false;
    }
    for (auto& place : recording.places) {
      if (place.is_made && place.memory) vacate(place, recording, binding);
    }
    for (const auto& check : recording.checks()) {
      context_.caller.hold_to_range(*check.plan, *check.range, context_.storages.at(binding.ids[check.place]), *check.layout, check.offset);
    }
  } catch (const CommandError&) {
    return false;
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

bool GraphExecutor::place_input(Recording& recording, size_t number, const Recording::Binding& binding) {
  auto& place = recording.places[number];
  Entry& entry = context_.storages.at(binding.ids[number]);
  if (place.bytes == 0) return true;
  if (!entry.memory()) entry.touch(context_.device);
  if (place.is_written && entry.watch() != nullptr) entry.watch()->before_write();
  if (!place.moves) {
    if (recording.graph && entry.memory().data() != place.address) return false;
    place.address = entry.memory().data();
    return true;
  }
  if (!place.memory) place.memory = context_.device.allocate(place.bytes, /*zeroed=*/false);
  if (!has_memory(entry, place.memory)) {
    vacate(place, recording, binding);
    context_.device.copy(place.memory, 0, entry.memory(), 0, place.bytes);
    entry.relocate(place.memory);
  }
  place.id = binding.ids[number];
  return true;
}

void GraphExecutor::vacate(Recording::Place& place, const Recording& recording, const Recording::Binding& binding) {
  if (place.id == 0 || !context_.storages.has(place.id)) return;
  Entry& entry = context_.storages.at(place.id);
  if (!has_memory(entry, place.memory)) return;
  const auto bound = std::find(binding.ids.begin(), binding.ids.end(), place.id);
  if (bound != binding.ids.end() && !recording.places[static_cast<size_t>(bound - binding.ids.begin())].is_input) return;
  auto memory = context_.device.allocate(entry.bytes(), /*zeroed=*/false);
  context_.device.copy(memory, 0, entry.memory(), 0, entry.bytes());
  entry.relocate(std::move(memory));
}

bool GraphExecutor::launch(Recording& recording, const Recording::Binding& binding) {
  for (size_t number = 0; number < recording.places.size(); ++number) {
    if (recording.places[number].is_written) context_.storages.at(binding.ids[number]).forget_numbers();
  }
  try {
    const Running::Call call(context_.caller.running(), kRunningGraph);
    recording.graph->replay(context_.device.draws_of(binding.draws));
    return true;
  } catch (const std::exception&) {
    context_.effects.announced(context_.effects.stop_now(kRunningGraph, context_.effects.next_call()));
    return false;
  }
}

bool GraphExecutor::run(Candidate& candidate) {
  const Path& path = candidate.path();
  if (!candidate.by_tier_2()) {
    context_.tier1.run(path);
    return false;
  }
  bool fits = true;
  for (Part& part : candidate.graphs().parts) {
    context_.tier1.free_before(path, part.begin);
    Recording::Binding binding;
    if (!part.recording || !fits || !context_.effects.goes_on() || !part.recording->bind(path, binding) || !prepare_inputs(*part.recording, binding)) {
      fits = fits && !part.recording;
      context_.tier1.run(path, part.begin, part.end);
      continue;
    }
    launch(*part.recording, binding);
    take_results(*part.recording, binding);
  }
  if (!fits && context_.effects.goes_on()) candidate.record_again("numbers changed, or tensors lie elsewhere");
  return fits;
}

void GraphExecutor::take_results(Recording& recording, const Recording::Binding& binding) {
  const Cause cause = context_.effects.stopped();
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_freed && !place.is_made) context_.storages.free(id);
    if (place.is_made && !place.is_freed) {
      if (cause) {
        context_.effects.never_make(id, cause);
      } else if (Entry& entry = context_.storages.insert(id, place.bytes); place.memory) {
        entry.replace(place.memory);
      }
    }
    place.id = id;
  }
  context_.effects.commit_together(recording.calls());
}

void GraphExecutor::verify(Candidate& candidate) {
  std::string wrong;
  bool fits = true;
  for (Part& part : candidate.graphs().parts) {
    context_.tier1.free_before(candidate.path(), part.begin);
    if (part.recording && fits && context_.effects.goes_on()) {
      fits = verify(*part.recording, candidate.path(), wrong);
    } else {
      context_.tier1.run(candidate.path(), part.begin, part.end);
    }
  }
  if (!context_.effects.goes_on()) return;
  if (!wrong.empty()) {
    candidate.stay("its graph is wrong: " + wrong);
  } else if (fits) {
    candidate.verified();
  } else {
    candidate.record_again("there was no room to hold its graph against tier 1, or tensors lie elsewhere");
  }
}

bool GraphExecutor::verify(Recording& recording, const Path& path, std::string& wrong) {
  Recording::Binding binding;
  Tensors before, found, again;
  const at::AutoDispatchBelowADInplaceOrView guard;
  bool fits = recording.bind(path, binding) && prepare_inputs(recording, binding);
  try {
    for (size_t number = 0; number < recording.places.size() && fits; ++number) {
      const auto& place = recording.places[number];
      if (place.is_written && place.bytes > 0) before.push_back(flat(place, context_.storages.at(binding.ids[number]).memory()).clone());
    }
    if (fits) found = launch_and_undo(recording, binding, before);
    if (fits && !context_.effects.stopped()) again = launch_and_undo(recording, binding, before);
  } catch (const c10::Error&) {  // no room
    fits = false;
  }
  context_.tier1.run(path, recording.begin(), recording.end());
  if (!fits || !context_.effects.goes_on()) return false;
  compare(recording, binding, found, again, wrong);
  return true;
}

void GraphExecutor::compare(Recording& recording, const Recording::Binding& binding, const Tensors& found, const Tensors& again, std::string& wrong) {
  size_t next = 0;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    auto& place = recording.places[number];
    if (!place.has_bytes_of_result()) continue;
    Entry& entry = context_.storages.at(binding.ids[number]);
    if (!entry.memory()) entry.touch(context_.device);
    const at::Tensor expected = flat(place, entry.memory());
    if (wrong.empty() && !is_as_expected(found[next], again[next], expected)) {
      wrong = "result " + std::to_string(next + 1) + " of " + std::to_string(found.size()) + ", " + c10::toString(expected.scalar_type()) + " of " +
              std::to_string(place.bytes) + " bytes, is not that of tier 1";
    }
    ++next;
    if (!place.is_made) continue;
    context_.device.copy(place.memory, 0, entry.memory(), 0, place.bytes);  // where parts that come later look for it
    entry.relocate(place.memory);
    place.id = binding.ids[number];
  }
}

std::vector<at::Tensor> GraphExecutor::launch_and_undo(Recording& recording, const Recording::Binding& binding, const Tensors& before) {
  Tensors places, found, written;
  for (size_t number = 0; number < recording.places.size(); ++number) {
    const auto& place = recording.places[number];
    if (place.bytes == 0 || !(place.is_written || place.is_made)) continue;
    const auto memory = place.is_made ? place.memory : context_.storages.at(binding.ids[number]).memory();
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

at::Tensor GraphExecutor::flat(const Recording::Place& place, const c10::Storage& memory) {
  auto dtype = place.dtype == c10::ScalarType::Undefined ? c10::ScalarType::Byte : place.dtype;
  if (place.bytes % static_cast<int64_t>(c10::elementSize(dtype)) != 0) dtype = c10::ScalarType::Byte;
  Entry entry(place.bytes, nullptr);
  entry.replace(memory);
  const int64_t elements = place.bytes / static_cast<int64_t>(c10::elementSize(dtype));
  return entry.view(context_.device, *context_.templates.layouts().intern({static_cast<uint8_t>(dtype), 0, {elements}, {1}}), 0);
}

}  // namespace forebay::worker
