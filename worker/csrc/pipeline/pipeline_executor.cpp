#include "pipeline/pipeline_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <forebay/out_of_memory.h>

#include "base/memory.h"
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
constexpr double kSteadyGain = 0.85;                                 // of the time as it is planned otherwise, that a steady one must stay below: nothing is timed
constexpr uint64_t kPlannedBy = 16;                            // comings, after which no plan of its step is waited for any more
constexpr double kWholeStep = 0.9;                             // of the work of a step that was planned: a segment with less is a part of one
constexpr double kMuchSlower = 1.2;                            // than tier 1, which has more to move between devices when it comes by turns
constexpr int kSlowerMost = 3;                                 // times, of as many
constexpr int64_t kSpareShare = 8;                             // of a device's memory
constexpr int64_t kComparedBytes = int64_t{1} << 20;           // that are compared at a time
constexpr double kForetoldUnits = 1000;                        // of one, in an image
const std::string kRunning = "a pipeline's calls";
const std::string kOtherWeights = "its weights are others now";  // as where a program makes its model anew

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
  if (resume(candidate)) return;
  candidate.sought();
  const Path& path = candidate.path();
  steps().begin_step(/*by_pipeline=*/false);
  const auto data = sliced_data_of(path, context_.templates, context_.storages);
  const size_t first = MicroBatches::first_step(path, context_.templates, context_.storages, data_parallel().batches(), data).value_or(path.size());
  context_.tier1.run(path, 0, first);
  if (first == path.size()) return candidate.stay("it is no pipeline: it is given no batch");
  context_.tier1.free_before(path, first);
  try {
    if (candidate.is_steady() && !always()) {
      if (!steps().foretold() && path.back()->ended < kPlannedBy) return context_.tier1.run(path, first, path.size());
      demand_chance(path);
    }
    auto pipeline = chosen(path, first, data);
    if (!always()) demand_gain(pipeline, candidate.is_steady());
    candidate.staged(packed(pipeline), always() || candidate.is_steady() ? std::optional(pipeline.foretold.value_or(1)) : std::nullopt);
    pipelines_.insert_or_assign(candidate.number(), std::move(pipeline));
  } catch (const NotPipelined& reason) {
    candidate.stay(std::string("it is no pipeline: ") + reason.what());
  }
  context_.tier1.run(path, first, path.size());
}

bool PipelineExecutor::resume(Candidate& candidate) {
  const Path& path = candidate.path();
  if (!candidate.resumed()) return false;
  const auto resumed = *candidate.resumed();
  if (resumed.course == wire::SegmentCourse::kTier1) {
    candidate.stay("another worker of the session carried it out call by call");
    context_.tier1.run(path);
    return true;
  }
  auto pipeline = unpacked(resumed.pipeline, path);
  if (!pipeline) return false;
  pipelines_.insert_or_assign(candidate.number(), std::move(*pipeline));
  candidate.staged(resumed.pipeline, pipelines_.at(candidate.number()).foretold);
  if (candidate.state() == Candidate::State::kServing) run(candidate);
  else verify(candidate);
  return true;
}

std::vector<uint64_t> PipelineExecutor::packed(const Pipeline& pipeline) const {
  const auto& shape = pipeline.shape;
  const auto foretold = static_cast<uint64_t>(kForetoldUnits * pipeline.foretold.value_or(1)), step_ns = static_cast<uint64_t>(1e9 * pipeline.step_s());
  std::vector<uint64_t> numbers{gang_.gang().size(), foretold, step_ns, static_cast<uint64_t>(pipeline.bytes()), shape.begin, shape.end, static_cast<uint64_t>(shape.parts),
                                static_cast<uint64_t>(shape.rows)};
  for (const auto* stages : {&shape.stages, &pipeline.followers}) {
    numbers.push_back(stages->size());
    for (const auto& [id, place] : std::map(stages->begin(), stages->end())) {
      numbers.push_back(id);
      numbers.push_back(static_cast<uint64_t>(place));
    }
  }
  numbers.push_back(shape.data.size());
  numbers.insert(numbers.end(), shape.data.begin(), shape.data.end());
  return numbers;
}

std::optional<PipelineExecutor::Pipeline> PipelineExecutor::unpacked(const std::vector<uint64_t>& numbers, const Path& path) const {
  const size_t devices = gang_.gang().size();
  if (numbers.empty() || numbers.front() != devices) return std::nullopt;
  auto number = numbers.begin() + 1;
  const auto next = [&](uint64_t least, uint64_t most) {
    if (number == numbers.end() || *number < least || *number > most) throw wire::WireError("an image of a pipeline that there cannot be");
    return *number++;
  };
  Pipeline pipeline;
  pipeline.foretold = static_cast<double>(next(0, wire::kStepsMax)) / kForetoldUnits;
  pipeline.seconds = static_cast<double>(next(0, std::numeric_limits<int64_t>::max())) / 1e9;
  pipeline.held.assign(devices, static_cast<int64_t>(next(0, wire::kStorageBytesMax)));
  pipeline.shape.begin = next(0, path.size());
  pipeline.shape.end = next(pipeline.shape.begin + 1, path.size());
  pipeline.shape.parts = static_cast<int64_t>(next(1, devices * static_cast<uint64_t>(kPartsOfDevices.back())));
  pipeline.shape.rows = static_cast<int>(next(1, devices));
  if (devices % static_cast<size_t>(pipeline.shape.rows) != 0) throw wire::WireError("an image of stages that are not alike");
  for (auto* stages : {&pipeline.shape.stages, &pipeline.followers}) {
    for (uint64_t left = next(0, wire::kStoragesMax); left > 0; --left) {
      const uint64_t id = next(1, std::numeric_limits<uint64_t>::max());
      stages->emplace(id, static_cast<int>(next(0, devices - 1)));
    }
  }
  for (uint64_t left = next(0, wire::kStoragesMax); left > 0; --left) pipeline.shape.data.insert(next(1, std::numeric_limits<uint64_t>::max()));
  if (number != numbers.end()) throw wire::WireError("something behind a pipeline");
  return pipeline;
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

// Stages that take as long; where none of them fits, those with weights of as many bytes, and whose updates may go by turns. And of the best, then with
// one layer more or less.
PipelineExecutor::Pipeline PipelineExecutor::chosen(const Path& path, size_t first, const SlicedData& data) {
  const Layers layers(path, first, data, gang(), context_.storages, [this](uint64_t number) -> const Plan& { return context_.templates.known(number); });
  const PipelineShape all{first, path.size(), 0, 1, {}, data};
  std::optional<Pipeline> best;
  std::optional<NotPipelined> why;
  using By = Layers::By;
  for (const auto& [by, spills] : {std::pair(By::kSeconds, false), {By::kBytes, false}, {By::kBytes, true}}) {
    try {
      best = best_of(path, layers, all, by, spills);
      break;
    } catch (const NotPipelined& reason) {
      why = reason;
    }
  }
  if (!best) throw *why;
  best = improved(path, layers, std::move(*best));
  if (const auto otherwise = steps().foretold()) best->foretold = best->step_s() / otherwise->seconds;
  note(*best, /*serves=*/false);
  return std::move(*best);
}

PipelineExecutor::Pipeline PipelineExecutor::best_of(const Path& path, const Layers& layers, const PipelineShape& all, Layers::By by, bool spills) {
  const auto devices = static_cast<int64_t>(gang().size());
  std::optional<Pipeline> best;
  std::string why = "it has fewer layers than there are stages";
  bool is_tried = false;
  int trials = by == Layers::By::kBytes ? kTrials : 0;
  for (const int rows : rows_of_stages()) {
    const size_t stages = gang().size() / static_cast<size_t>(rows);
    if (layers.count() < stages) continue;
    const auto cuts = layers.balanced(stages, by);
    for (const int64_t times : kPartsOfDevices) {
      try {
        auto shape = all;
        shape.parts = times * devices;
        shape.rows = rows;
        auto pipeline = fitted(path, layers, pipeline_of(path, layers, std::move(shape), cuts, spills), trials);
        const bool is_few = always() && best && best->shape.parts == devices;
        if (!best || is_few || pipeline.step_s() < best->step_s()) best = std::move(pipeline);
      } catch (const NotPipelined& reason) {
        if (!std::exchange(is_tried, true)) why = reason.what();
      } catch (const wire::WireError& reason) {  // of a template that its contract does not allow; nothing was sent yet
        if (!std::exchange(is_tried, true)) why = reason.what();
      }
    }
  }
  if (!best) throw NotPipelined(why);
  return std::move(*best);
}

void PipelineExecutor::demand_chance(const Path& path) {
  const auto otherwise = steps().foretold();
  if (!otherwise) throw NotPipelined("it is not known how long a step takes otherwise");
  const double work_s = work_of(path, 0, path.size());
  if (work_s < kWholeStep * otherwise->work_s) throw NotPipelined("it is a part of a step");
  const bool may_gain = work_s / static_cast<double>(gang().size()) < kSteadyGain * otherwise->seconds;
  if (otherwise->fits && !may_gain) throw NotPipelined("a step takes little longer than its work, divided by the devices");
}

void PipelineExecutor::demand_gain(const Pipeline& pipeline, bool is_steady) {
  const auto otherwise = steps().foretold();
  if (!otherwise || (is_steady && !otherwise->fits) || pipeline.foretold < (is_steady ? kSteadyGain : 1)) return;
  char text[120];
  std::snprintf(text, sizeof(text), "it would take %.1f ms a step, and takes %.1f as it is planned", pipeline.step_s() * 1e3, otherwise->seconds * 1e3);
  throw NotPipelined(text);
}

void PipelineExecutor::note(const Pipeline& pipeline, bool serves) {
  wire::GangPlan::Pipeline told;
  told.serves = serves;
  told.parts = static_cast<uint64_t>(pipeline.shape.parts);
  told.step_ns = static_cast<uint64_t>(pipeline.step_s() * 1e9);
  told.bytes = static_cast<uint64_t>(pipeline.bytes());
  told.rows = static_cast<uint64_t>(pipeline.shape.rows);
  told.stages.resize(gang().size() / told.rows);
  for (const auto& [id, place] : pipeline.shape.stages) told.stages[static_cast<size_t>(pipeline.shape.stage_of(place))] += static_cast<uint64_t>(context_.storages.at(id).bytes());
  steps().note_pipeline(std::move(told));
}

PipelineExecutor::Pipeline PipelineExecutor::pipeline_of(const Path& path, const Layers& layers, PipelineShape shape, const std::vector<size_t>& cuts, bool spills) {
  Pipeline pipeline;
  pipeline.spills = spills;
  pipeline.shape = std::move(shape);
  pipeline.cuts = cuts;
  pipeline.shape.stages = layers.divided(cuts, pipeline.shape.rows);
  pipeline.shape.end = path.size();
  pipeline.shape.end = built(path, pipeline.shape).divided_end();
  if (pipeline.shape.end <= pipeline.shape.begin) throw NotPipelined("no rule divides its calls");
  const auto batches = built(path, pipeline.shape);
  const auto order = order_of(batches.tasks(), gang().size(), batches.kept());
  if (!has_weights(batches, pipeline)) throw NotPipelined("some of its layers are given no part of a batch");
  pipeline.followers = followers_of(path, pipeline.shape.begin, pipeline.shape.stages, gang(), context_.templates);
  std::erase_if(pipeline.followers, [&](const auto& follower) { return !context_.storages.has(follower.first); });
  auto bytes = order.bytes;
  const auto afterwards = bytes_afterwards(path, batches, pipeline);
  for (size_t place = 0; place < bytes.size(); ++place) bytes[place] = std::max(bytes[place], afterwards[place]);
  pipeline.held = held_with(pipeline, batches, std::move(bytes));
  pipeline.seconds = order.seconds;
  double left_s = work_of(path, 0, pipeline.shape.begin) + work_of(path, pipeline.shape.end, path.size());
  for (const size_t index : batches.left()) left_s += work_of(path, index, index + 1);
  pipeline.left_s = left_s / static_cast<double>(gang().size());
  return pipeline;
}

std::optional<PipelineExecutor::Pipeline> PipelineExecutor::quicker(const Path& path, const Layers& layers, const Pipeline& than, const std::vector<size_t>& cuts) try {
  auto other = pipeline_of(path, layers, than.shape, cuts, than.spills);
  if (!has_room(other.held) || other.step_s() >= than.step_s() * kWorthIt) return std::nullopt;
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

PipelineExecutor::Pipeline PipelineExecutor::fitted(const Path& path, const Layers& layers, Pipeline from, int& trials) {
  std::set<std::vector<size_t>> tried{from.cuts};
  while (!has_room(from.held) && --trials >= 0) {
    const auto cuts = lighter_cuts(from, layers.count());
    if (!tried.insert(cuts).second) break;
    from = pipeline_of(path, layers, from.shape, cuts, from.spills);
  }
  demand_room(from.held);
  return from;
}

// Towards the end where a stage holds less.
std::vector<size_t> PipelineExecutor::lighter_cuts(const Pipeline& pipeline, size_t layers) {
  const auto& held = pipeline.held;
  const auto rows = static_cast<size_t>(pipeline.shape.rows), stage = static_cast<size_t>(std::max_element(held.begin(), held.end()) - held.begin()) / rows;
  auto cuts = pipeline.cuts;
  const size_t first = stage == 0 ? 0 : cuts[stage - 1], end = stage == cuts.size() ? layers : cuts[stage];
  if (end - first < 2) return cuts;
  const auto mean = [&](size_t begin, size_t until) {
    const auto from = held.begin() + static_cast<std::ptrdiff_t>(begin * rows), to = held.begin() + static_cast<std::ptrdiff_t>(until * rows);
    return from == to ? std::numeric_limits<double>::infinity() : std::accumulate(from, to, 0.0) / static_cast<double>(to - from);
  };
  if (mean(0, stage) < mean(stage + 1, cuts.size() + 1)) ++cuts[stage - 1];
  else --cuts[stage];
  return cuts;
}

double PipelineExecutor::work_of(const Path& path, size_t begin, size_t end) {
  double seconds = 0;
  for (size_t index = begin; index < end; ++index) {
    if (wire::is_allocation(path[index]->key)) continue;
    const uint64_t number = template_of(*path[index]);
    seconds += seconds_of(gang().templates().template_of(number), gang().templates().operator_of(number), gang().rates());
  }
  return seconds;
}

// Each device makes its part of what the steps after the tasks make, as owners do.
std::vector<int64_t> PipelineExecutor::bytes_afterwards(const Path& path, const MicroBatches& batches, const Pipeline& pipeline) {
  std::vector<int64_t> bytes(gang().size(), 0);
  for (const auto& result : batches.results()) bytes[static_cast<size_t>(result.place)] += result.bytes;
  if (pipeline.spills) return bytes;
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
  for (size_t index = pipeline.shape.end; index < path.size(); ++index) follow(*path[index]);
  for (auto& at_device : bytes) at_device += most / static_cast<int64_t>(bytes.size());
  return bytes;
}

std::vector<int64_t> PipelineExecutor::held_with(const Pipeline& pipeline, const MicroBatches& batches, std::vector<int64_t> bytes) {
  auto kept = pipeline.shape.stages;
  kept.insert(pipeline.followers.begin(), pipeline.followers.end());
  kept.insert(batches.given().begin(), batches.given().end());
  for (const auto& [id, place] : kept) {
    if (context_.storages.has(id)) bytes[static_cast<size_t>(place)] += context_.storages.at(id).bytes();
  }
  return bytes;
}

bool PipelineExecutor::has_room(const std::vector<int64_t>& held) {
  const int64_t part = gang().memory().part_of(context_.storages.limit_bytes());
  return *std::max_element(held.begin(), held.end()) <= part - part / kSpareShare;
}

void PipelineExecutor::demand_room(const std::vector<int64_t>& held) {
  if (has_room(held)) return;
  const int64_t part = gang().memory().part_of(context_.storages.limit_bytes());
  throw NotPipelined("a device has no room for its stage: that takes " + human_bytes(*std::max_element(held.begin(), held.end())) + " of " + human_bytes(part));
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
    if (!has_weights(batches, pipeline)) throw NotPipelined(kOtherWeights);
    const auto kept = batches.kept();
    const auto order = order_of(batches.tasks(), gang().size(), kept);
    demand_room(held_with(pipeline, batches, order.bytes));
    place(batches, pipeline, order.bytes);
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

bool PipelineExecutor::has_weights(const MicroBatches& batches, const Pipeline& pipeline) {
  const auto& stages = pipeline.shape.stages;
  return std::all_of(stages.begin(), stages.end(), [&](const auto& stage) { return batches.given().count(stage.first) != 0; });
}

void PipelineExecutor::place(const MicroBatches& batches, const Pipeline& pipeline, const std::vector<int64_t>& made_bytes) {
  std::vector<std::vector<uint64_t>> kept(gang().size());
  for (const auto* stages : {&pipeline.shape.stages, &pipeline.followers}) {
    for (const auto& [id, place] : *stages) {
      if (context_.storages.has(id)) kept[static_cast<size_t>(place)].push_back(id);
    }
  }
  auto wanted = made_bytes;  // at each device, beside what lies there
  for (size_t place = 0; place < kept.size(); ++place) {
    auto& ids = kept[place];
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const uint64_t id : ids) {
      const Entry& entry = context_.storages.at(id);
      const bool is_there = entry.share() == nullptr && entry.holds_anything() && entry.home() == static_cast<int>(place);
      if (!is_there) wanted[place] += entry.bytes();
    }
  }
  const int64_t most = *std::max_element(wanted.begin(), wanted.end());
  for (size_t place = 0; place < kept.size(); ++place) {
    const auto device = static_cast<int>(place);
    if (wanted[place] > gang().memory().spare_room(device, 0)) gang().homes().relieve(device, wanted[place], kept[place], 0, most);
    data_parallel().keep(kept[place], device);
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
    if (why == kOtherWeights) candidate.record_again(why);
    else if (!why.empty()) candidate.mismatched();
    context_.tier1.run(path, pipeline.shape.begin, path.size());
    return false;
  }
  if (!steps().has_pipeline()) note(pipeline, /*serves=*/true);  // another plan was made meanwhile
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
  if (why == kOtherWeights) return candidate.record_again(why);
  if (!batches) return candidate.stay("its pipeline could not be carried out: " + why);
  if (!is_right) return candidate.stay("there is no room to compare what its pipeline computes");
  if (!*is_right) return candidate.stay("its pipeline computes something else");
  pipeline.slower += !candidate.is_steady() && took_s_ > kMuchSlower * tier_1_s;
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
      const UncountedOnHost uncounted;  // or a full device could not be compared
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
