#include "pipeline/pipeline_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "call/call_storages.h"
#include "parallel/call_seconds.h"
#include "pipeline/followers.h"
#include "pipeline/task_runner.h"
#include "sharding/call_tensors.h"
#include "tier2/proof.h"

namespace forebay::worker {

namespace {

constexpr int kTrials = 24;                                    // of other divisions into stages
constexpr std::array<int64_t, 4> kPartsOfDevices{1, 2, 4, 8};  // parts of a batch, for each device
constexpr double kWorthIt = 0.995;                             // of the time before
constexpr double kMuchSlower = 1.2;                            // than tier 1, which has more to move between devices when it comes by turns
constexpr int kSlowerMost = 3;                                 // times, of as many
constexpr int64_t kSpareShare = 8;                             // of a device's memory
constexpr int64_t kComparedBytes = int64_t{1} << 20;           // that are compared at a time
const std::string kRunning = "a pipeline's calls";

uint64_t template_of(const wire::Step& step) { return wire::key_value(step.key); }

}  // namespace

void PipelineExecutor::forget() {
  ways_.clear();
  pipelines_.clear();
}

MicroBatches PipelineExecutor::built(const Path& path, const PipelineShape& shape) {
  auto& ways = ways_[shape.parts];
  if (!ways) ways = std::make_unique<Ways>(gang(), context_.device, shape.parts);
  return {path, shape, gang(), context_.storages, context_.templates, data_parallel().batches(), *ways};
}

// Choosing.

// The steps before the first that is given a batch come first: what they make must be there.
void PipelineExecutor::prepare(Candidate& candidate, const Candidates&) {
  const Path& path = candidate.path();
  const size_t first = MicroBatches::first_step(path, context_.templates, data_parallel().batches()).value_or(path.size());
  context_.tier1.run(path, 0, first);
  if (first == path.size()) return candidate.stay("it is no pipeline: it is given no batch");
  context_.tier1.free_before(path, first);
  try {
    auto pipeline = chosen(path, first);
    pipelines_.insert_or_assign(candidate.number(), std::move(pipeline));
    candidate.recorded("pipeline", /*serves=*/always());
  } catch (const NotPipelined& reason) {
    candidate.stay(std::string("it is no pipeline: ") + reason.what());
  }
  context_.tier1.run(path, first, path.size());
}

std::vector<int> PipelineExecutor::rows_of_stages() const {
  const auto devices = static_cast<int>(gang_.gang().size());
  std::vector<int> rows{1};
  for (int each = 2; homes_ != Homes::kPipeline && each <= devices / 2; ++each) {
    if (devices % each == 0) rows.push_back(each);
  }
  if (homes_ == Homes::kMesh) rows.erase(rows.begin(), rows.end() - 1);
  return rows;
}

// Stages whose layers cost as much; and of the best, then with one layer more or less.
PipelineExecutor::Pipeline PipelineExecutor::chosen(const Path& path, size_t first) {
  const Layers layers(path, first, gang(), context_.storages, [this](uint64_t number) -> const Plan& { return context_.templates.known(number); });
  const auto devices = static_cast<int64_t>(gang().size());
  std::optional<Pipeline> best;
  std::string why = "it has fewer layers than there are stages";
  bool is_tried = false;
  for (const int rows : rows_of_stages()) {
    const size_t stages = gang().size() / static_cast<size_t>(rows);
    if (layers.count() < stages) continue;
    const auto cuts = layers.balanced(stages);
    for (const int64_t times : kPartsOfDevices) {
      try {
        auto pipeline = pipeline_of(path, layers, {first, path.size(), times * devices, rows, {}}, cuts);
        const bool is_few = always() && best && best->shape.parts == devices;
        if (!best || is_few || pipeline.seconds < best->seconds) best = std::move(pipeline);
      } catch (const NotPipelined& reason) {
        if (!std::exchange(is_tried, true)) why = reason.what();
      } catch (const wire::WireError& reason) {  // of a template that its contract does not allow; nothing was sent yet
        if (!std::exchange(is_tried, true)) why = reason.what();
      }
    }
  }
  if (!best) throw NotPipelined(why);
  best = improved(path, layers, std::move(*best));
  const auto plan = steps().reported();
  const double otherwise = plan && !plan->considered.empty() ? static_cast<double>(plan->considered.front().step_ns) / 1e9 : 0;
  const double taken = best->seconds + seconds_left(path, *best);
  note(*best, taken);
  if (!always() && otherwise > 0 && taken >= otherwise) {
    char text[120];
    std::snprintf(text, sizeof(text), "it would take %.1f ms a step, and takes %.1f as it is planned", taken * 1e3, otherwise * 1e3);
    throw NotPipelined(text);
  }
  return std::move(*best);
}

void PipelineExecutor::note(const Pipeline& pipeline, double seconds) {
  wire::GangPlan::Pipeline told;
  told.parts = static_cast<uint64_t>(pipeline.shape.parts);
  told.step_ns = static_cast<uint64_t>(seconds * 1e9);
  told.bytes = static_cast<uint64_t>(pipeline.bytes);
  told.rows = static_cast<uint64_t>(pipeline.shape.rows);
  told.stages.resize(gang().size() / told.rows);
  for (const auto& [id, place] : pipeline.shape.stages) told.stages[static_cast<size_t>(pipeline.shape.stage_of(place))] += static_cast<uint64_t>(context_.storages.at(id).bytes());
  steps().note_pipeline(std::move(told));
}

PipelineExecutor::Pipeline PipelineExecutor::pipeline_of(const Path& path, const Layers& layers, PipelineShape shape, const std::vector<size_t>& cuts) {
  Pipeline pipeline{std::move(shape), cuts, {}, 0, 0};
  pipeline.shape.stages = layers.divided(cuts, pipeline.shape.rows);
  pipeline.shape.end = path.size();
  pipeline.shape.end = built(path, pipeline.shape).divided_end();
  if (pipeline.shape.end <= pipeline.shape.begin) throw NotPipelined("no rule divides its calls");
  const auto batches = built(path, pipeline.shape);
  const auto order = order_of(batches.tasks(), gang().size(), batches.kept());
  pipeline.followers = followers_of(path, pipeline.shape.begin, pipeline.shape.stages, gang(), context_.templates);
  std::erase_if(pipeline.followers, [&](const auto& follower) { return !context_.storages.has(follower.first); });
  auto bytes = order.bytes;
  const auto afterwards = bytes_afterwards(path, batches, pipeline.shape);
  for (size_t place = 0; place < bytes.size(); ++place) bytes[place] = std::max(bytes[place], afterwards[place]);
  pipeline.bytes = demanded_room(pipeline, std::move(bytes));
  pipeline.seconds = order.seconds;
  return pipeline;
}

std::optional<PipelineExecutor::Pipeline> PipelineExecutor::quicker(const Path& path, const Layers& layers, const Pipeline& than, const std::vector<size_t>& cuts) try {
  auto other = pipeline_of(path, layers, than.shape, cuts);
  if (other.seconds >= than.seconds * kWorthIt) return std::nullopt;
  return other;
} catch (const NotPipelined&) {
  return std::nullopt;
}

// As long as that takes time off.
PipelineExecutor::Pipeline PipelineExecutor::improved(const Path& path, const Layers& layers, Pipeline from) {
  int trials = 0;
  for (bool is_better = true; is_better && trials < kTrials;) {
    is_better = false;
    for (size_t cut = 0; cut < from.cuts.size() && !is_better; ++cut) {
      for (const int by : {-1, 1}) {
        auto moved = from.cuts;
        moved[cut] += static_cast<size_t>(by);
        if (moved[cut] == 0 || moved[cut] >= layers.count() || !std::is_sorted(moved.begin(), moved.end()) || ++trials > kTrials) continue;
        auto other = quicker(path, layers, from, moved);
        if (!other) continue;
        from = std::move(*other);
        is_better = true;
        break;
      }
    }
  }
  return from;
}

// Of the steps that are none of the pipeline's, by all devices together.
double PipelineExecutor::seconds_left(const Path& path, const Pipeline& pipeline) {
  double seconds = 0;
  for (size_t index = 0; index < path.size(); ++index) {
    if (wire::is_allocation(path[index]->key) || (index >= pipeline.shape.begin && index < pipeline.shape.end)) continue;
    const uint64_t number = template_of(*path[index]);
    seconds += seconds_of(gang().templates().template_of(number), gang().templates().operator_of(number), gang().rates());
  }
  return seconds / static_cast<double>(gang().size());
}

// What the tasks leave, and what the steps afterwards make: each device its part of that, as owners do.
std::vector<int64_t> PipelineExecutor::bytes_afterwards(const Path& path, const MicroBatches& batches, const PipelineShape& shape) {
  std::vector<int64_t> bytes(gang().size(), 0);
  for (const auto& result : batches.results()) bytes[static_cast<size_t>(result.place)] += result.bytes;
  std::unordered_map<uint64_t, int64_t> made;
  int64_t now = 0, most = 0;
  const auto follow = [&](const wire::Step& step) {
    for (const auto& slot : step.freed) {
      const auto found = made.find(slot.last);
      if (found == made.end()) continue;
      now -= found->second;
      made.erase(found);
    }
    if (wire::is_allocation(step.key)) return;
    const Plan& plan = context_.templates.known(template_of(step));
    std::vector<const OutputPlan*> outputs;
    flatten(plan.outputs, outputs);
    for_each_made(plan, words_of(step), [&](size_t number, uint64_t id) { made[id] = outputs[number]->storage_bytes; });
    now += plan.new_bytes;
    most = std::max(most, now);
  };
  for (const size_t index : batches.left()) follow(*path[index]);
  for (size_t index = shape.end; index < path.size(); ++index) follow(*path[index]);
  for (auto& at_device : bytes) at_device += most / static_cast<int64_t>(bytes.size());
  return bytes;
}

int64_t PipelineExecutor::demanded_room(const Pipeline& pipeline, std::vector<int64_t> bytes) {
  auto kept = pipeline.shape.stages;
  kept.insert(pipeline.followers.begin(), pipeline.followers.end());
  for (const auto& [id, place] : kept) {
    if (context_.storages.has(id)) bytes[static_cast<size_t>(place)] += context_.storages.at(id).bytes();
  }
  const int64_t part = gang().memory().part_of(context_.storages.limit_bytes());
  const int64_t most = *std::max_element(bytes.begin(), bytes.end());
  if (most > part - part / kSpareShare) throw NotPipelined("a device has no room for its stage");
  return most;
}

// Carrying out.

bool PipelineExecutor::begin(const Path& path, const Pipeline& pipeline) {
  context_.tier1.run(path, 0, pipeline.shape.begin);
  context_.tier1.free_before(path, pipeline.shape.begin);
  return context_.effects.goes_on() && gang_.is_settled();
}

std::optional<MicroBatches> PipelineExecutor::computed(const Path& path, const Pipeline& pipeline, std::string& why) {
  const uint64_t since_ns = gang_.work().clock();
  const Running::Call call(context_.caller.running(), kRunning);
  try {
    auto batches = built(path, pipeline.shape);
    const auto kept = batches.kept();
    const auto order = order_of(batches.tasks(), gang().size(), kept);
    demanded_room(pipeline, order.bytes);
    place(batches, pipeline);
    const auto began = Clock::now();
    TaskRunner runner(batches.tasks(), order.order, kept, gang(), context_.device, context_.storages, context_.caller);
    auto held = gang().memory().used();
    runner.run(context_.effects.next_call());
    took_s_ = std::chrono::duration<double>(Clock::now() - began).count();
    gang_.work().book(gang_.work().divided(), since_ns);
    for (size_t place = 0; place < held.size(); ++place) held[place] += runner.peaks()[place];
    gang().memory().note_peaks(held);
    return batches;
  } catch (const wire::WireError&) {
    throw;
  } catch (const std::exception& error) {
    why = error.what();
    return std::nullopt;
  }
}

void PipelineExecutor::place(const MicroBatches& batches, const Pipeline& pipeline) {
  std::vector<std::vector<uint64_t>> kept(gang().size());
  for (const auto* stages : {&pipeline.shape.stages, &pipeline.followers}) {
    for (const auto& [id, place] : *stages) {
      if (context_.storages.has(id)) kept[static_cast<size_t>(place)].push_back(id);
    }
  }
  for (size_t place = 0; place < kept.size(); ++place) {
    std::sort(kept[place].begin(), kept[place].end());
    data_parallel().keep(kept[place], static_cast<int>(place));
  }
  for (const auto& [id, place] : batches.given()) {
    if (pipeline.shape.stages.count(id) != 0) continue;
    data_parallel().gather_to_read({id});
    if (context_.storages.at(id).share() == nullptr) gang().homes().bring(id, place);
  }
}

void PipelineExecutor::adopt(const Results& results) {
  for (const auto& result : results) {
    if (result.place == 0) continue;
    Entry& entry = context_.storages.insert(result.id, result.bytes);
    entry.live_elsewhere(std::make_unique<RankMemory>(gang().rank(result.place), result.id, result.bytes, /*made=*/true));
  }
}

bool PipelineExecutor::run(Candidate& candidate) {
  steps().begin_step(candidate.by_tier_2());
  if (candidate.by_tier_2()) return carried_out(candidate);
  context_.tier1.run(candidate.path());
  return false;
}

bool PipelineExecutor::carried_out(Candidate& candidate) {
  const Path& path = candidate.path();
  const Pipeline& pipeline = pipelines_.at(candidate.number());
  std::string why;
  const auto batches = begin(path, pipeline) ? computed(path, pipeline, why) : std::nullopt;
  if (!batches) {
    if (!why.empty()) candidate.mismatched();
    context_.tier1.run(path, pipeline.shape.begin, path.size());
    return false;
  }
  adopt(batches->results());
  finish(path, pipeline.shape, *batches);
  return true;
}

void PipelineExecutor::verify(Candidate& candidate) {
  const Path& path = candidate.path();
  Pipeline& pipeline = pipelines_.at(candidate.number());
  std::string why;
  steps().begin_step(/*by_pipeline=*/true);
  if (always()) {
    if (carried_out(candidate)) candidate.verified();
    return;
  }
  const auto batches = begin(path, pipeline) ? computed(path, pipeline, why) : std::nullopt;
  const auto found = batches ? taken_of(*batches) : std::nullopt;
  steps().begin_step(/*by_pipeline=*/false);
  const auto began = Clock::now();
  context_.tier1.run(path, pipeline.shape.begin, pipeline.shape.end);
  const bool is_done = context_.effects.goes_on() && gang_.is_settled();
  const double tier_1_s = std::chrono::duration<double>(Clock::now() - began).count();
  const auto is_right = found && is_done ? is_same(*batches, *found) : std::nullopt;
  if (pipeline.shape.end < path.size()) {
    context_.tier1.free_before(path, pipeline.shape.end);
    context_.tier1.run(path, pipeline.shape.end, path.size());
  }
  if (!context_.effects.goes_on()) return;
  if (!batches) return candidate.stay("its pipeline could not be carried out: " + why);
  if (!is_right) return candidate.mismatched();
  if (!*is_right) return candidate.stay("its pipeline computes something else");
  pipeline.slower += took_s_ > kMuchSlower * tier_1_s;
  if (pipeline.slower == kSlowerMost) candidate.stay("its pipeline takes much longer than tier 1");
  else candidate.verified();
}

c10::Storage PipelineExecutor::bytes_of(const MicroBatches::Result& result) {
  gang_.make_whole({result.id}, /*only_read=*/true);
  Entry& entry = context_.storages.at(result.id);
  auto memory = context_.device.allocate_parked(result.bytes);
  if (entry.home() == 0) {
    context_.device.copy(memory, 0, entry.read(context_.device), 0, result.bytes);
    context_.device.synchronize();
  } else {
    gang().homes().read(result.id, entry, 0, result.bytes, static_cast<uint8_t*>(memory.mutable_data()));
  }
  return memory;
}

std::optional<std::vector<c10::Storage>> PipelineExecutor::taken_of(const MicroBatches& batches) {
  std::optional<std::vector<c10::Storage>> found(std::in_place);
  adopt(batches.results());
  try {
    for (const auto& result : batches.results()) found->push_back(bytes_of(result));
  } catch (const c10::Error&) {
    found.reset();
  }
  for (const auto& result : batches.results()) context_.storages.withdraw(result.id);
  return found;
}

std::optional<bool> PipelineExecutor::is_same(const MicroBatches& batches, const std::vector<c10::Storage>& found) try {
  for (size_t index = 0; index < found.size(); ++index) {
    const auto& result = batches.results()[index];
    if (!context_.storages.has(result.id)) continue;
    const auto expected = bytes_of(result);
    const auto item_bytes = static_cast<int64_t>(c10::elementSize(result.dtype));
    const bool is_even = result.bytes % item_bytes == 0;
    RoundingOfPieces pieces;
    for (int64_t at = 0; at < result.bytes; at += kComparedBytes) {
      const int64_t bytes = std::min(kComparedBytes, result.bytes - at), items = is_even ? bytes / item_bytes : bytes;
      const auto piece = [&](const c10::Storage& memory) {
        return at::from_blob(static_cast<uint8_t*>(memory.mutable_data()) + at, {items}, at::TensorOptions(is_even ? result.dtype : c10::ScalarType::Byte));
      };
      pieces.note(piece(found[index]), piece(expected));
    }
    if (!pieces.holds()) return false;
  }
  return true;
} catch (const c10::Error&) {
  return std::nullopt;
}

void PipelineExecutor::finish(const Path& path, const PipelineShape& shape, const MicroBatches& batches) {
  uint64_t calls = 0;
  for (size_t index = shape.begin; index < shape.end; ++index) calls += wire::is_allocation(path[index]->key) ? 0 : 1;
  context_.effects.commit_together(calls - batches.left().size());
  for (const uint64_t id : batches.taken()) data_parallel().batches().note_used(id);
  for (const size_t index : batches.left()) context_.tier1.run(path, index, index + 1);
  for (size_t index = shape.begin + 1; index <= shape.end && index < path.size(); ++index) {
    for (const auto& slot : path[index]->freed) {
      if (context_.storages.has(slot.last)) context_.storages.free(slot.last);
    }
  }
  if (shape.end < path.size()) context_.tier1.run(path, shape.end, path.size());
}

}  // namespace forebay::worker
