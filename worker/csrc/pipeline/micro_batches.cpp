#include "pipeline/micro_batches.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "call/call_storages.h"
#include "gang/own_calls.h"
#include "pipeline/followers.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

constexpr int64_t kPiecesMax = 512;    // that are copied one by one
constexpr size_t kTasksMax = 100'000;  // of a segment

// Puts storages in the places of a call's own.
class Renaming {
 public:
  Renaming(const Plan& plan, wire::Words words) : plan_(plan), words_(std::move(words)) {}

  template <class Name>
  Renaming& given(const Name& name) {
    for_each_tensor(plan_, wire::Words(words_), [&](size_t index, uint64_t id) { words_[index] = name(id); });
    return *this;
  }
  template <class Name>
  Renaming& made(const Name& name) {
    size_t number = 0;
    for (size_t index = 0; index < plan_.words.size(); ++index) {
      if (plan_.words[index] == wire::Word::kNew) words_[index] = name(number++);
    }
    return *this;
  }
  wire::Words words() { return std::move(words_); }

 private:
  const Plan& plan_;
  wire::Words words_;
};

wire::Argument flat(c10::ScalarType dtype, int64_t bytes) { return dense(dtype, {bytes / static_cast<int64_t>(c10::elementSize(dtype))}); }

}  // namespace

MicroBatches::MicroBatches(const Path& path, const PipelineShape& shape, Gang& gang, Storages& storages, Templates& templates, const Batches& batches, Ways& ways)
    : path_(path), shape_(shape), gang_(gang), storages_(storages), templates_(templates), batches_(batches), ways_(ways), graph_(gang), is_left_(shape.end - shape.begin, false) {
  wanted_ = followers_of(path, shape.begin, shape.stages, gang, templates);
  note_left();
  note_frees();
  for (size_t index = shape_.begin; index < shape_.end; ++index) {
    const wire::Step& step = *path_[index];
    if (is_left_[index - shape_.begin]) continue;
    if (wire::is_allocation(step.key)) {
      allocate(step, index);
      continue;
    }
    const uint64_t number = wire::key_value(step.key);
    carry_out({index, number, templates_.known(number), words_of(step)});
    if (graph_.tasks().size() > kTasksMax) throw NotPipelined("it has too many calls");
  }
  finish();
}

std::optional<size_t> MicroBatches::first_step(const Path& path, Templates& templates, Storages& storages, const Batches& batches, const SlicedData& data) {
  for (size_t index = 0; index < path.size(); ++index) {
    if (wire::is_allocation(path[index]->key)) continue;
    const Plan& plan = templates.known(wire::key_value(path[index]->key));
    const auto words = words_of(*path[index]);
    bool is_first = Batches::makes_batch(plan, words) || !slices_of(plan, words, data, storages).empty();
    for_each_tensor(plan, words, [&](size_t, uint64_t id) { is_first = is_first || batches.is_unused(id); });
    if (is_first) return index;
  }
  return std::nullopt;
}

std::vector<uint64_t> MicroBatches::kept() const {
  std::vector<uint64_t> ids;
  for (const auto& result : results_) ids.push_back(result.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// What is carried out when.

void MicroBatches::note_left() {
  std::unordered_set<uint64_t> seen;  // by steps that are left
  std::unordered_set<uint64_t> changed;
  for (size_t index = shape_.begin; index < shape_.end; ++index) {
    const wire::Step& step = *path_[index];
    const auto words = words_of(step);
    if (wire::is_allocation(step.key)) {
      made_here_.insert(words.front());
      continue;
    }
    const Plan& plan = templates_.known(wire::key_value(step.key));
    const auto given = storages_of(plan, words), written = written_of(plan, words);
    const bool is_left = std::any_of(given.begin(), given.end(), [&](uint64_t id) { return changed.count(id) != 0; }) ||
                         std::any_of(written.begin(), written.end(), [&](uint64_t id) { return made_here_.count(id) == 0 || seen.count(id) != 0; });
    if (!is_left) {
      for_each_made(plan, words, [&](size_t, uint64_t id) { made_here_.insert(id); });
      rewritten_.insert(written.begin(), written.end());
      continue;
    }
    is_left_[index - shape_.begin] = true;
    left_.push_back(index);
    seen.insert(given.begin(), given.end());
    changed.insert(written.begin(), written.end());
    for_each_made(plan, words, [&](size_t, uint64_t id) { changed.insert(id); });
    for (const uint64_t id : given) {
      if (made_here_.count(id) != 0) kept_for_left_.insert(id);
    }
  }
}

void MicroBatches::note_frees() {
  for (size_t index = shape_.begin + 1; index <= shape_.end && index < path_.size(); ++index) {
    for (const auto& slot : path_[index]->freed) ended_.insert(slot.last);
  }
}

// Storages.

MicroBatches::Value& MicroBatches::value(uint64_t id) {
  const auto found = values_.find(id);
  if (found != values_.end()) return found->second;
  if (!storages_.has(id)) throw NotPipelined("it uses what is not there");
  const Entry& entry = storages_.at(id);
  if (entry.cause() || entry.shortfall()) throw NotPipelined("it uses what was never made");
  const auto stage = shape_.stages.find(id);
  const int place = stage != shape_.stages.end() ? stage->second : entry.share() != nullptr ? 0 : std::max(entry.home(), 0);
  given_.emplace(id, place);
  graph_.know(id, place, entry.bytes());
  Value& value = values_[id];
  value.bytes = entry.bytes();
  value.was_there = true;
  value.whole = id;
  return value;
}

MicroBatches::Value& MicroBatches::made(uint64_t id, int64_t bytes, c10::ScalarType dtype, size_t step) {
  Value& value = values_[id] = Value();
  value.bytes = bytes;
  value.dtype = dtype;
  value.since = step;
  return value;
}

void MicroBatches::allocate(const wire::Step& step, size_t index) {
  made(step.slots.front().last, static_cast<int64_t>(wire::key_value(step.key)), c10::ScalarType::Byte, index).is_untouched = true;
}

void MicroBatches::find_batch(const Call& call) {
  const auto layouts = layouts_of(call.plan);
  auto layout = layouts.begin();
  for_each_tensor(call.plan, call.words, [&](size_t index, uint64_t id) {
    const Layout& view = **layout++;
    const bool is_new = values_.count(id) == 0;
    Value& one = value(id);
    if (one.dtype == c10::ScalarType::Byte) one.dtype = view.dtype;
    if (!is_new || !batches_.is_unused(id)) return;
    taken_.push_back(id);
    const int64_t period = Batches::period_of_rows(view, static_cast<int64_t>(call.words[index + 1]), one.bytes, shape_.parts);
    if (period == 0) return;
    one.is_batch = true;
    cut(one, period, call.step);
  });
}

void MicroBatches::take_slices(Call& call) {
  for (const auto& slice : slices_of(call.plan, call.words, shape_.data, storages_)) {
    const uint64_t taken = taken_slice(slice, call.step);
    if (values_.at(taken).bytes != slice.bytes) continue;  // another part that begins there
    call.words[slice.place] = taken;
    call.words[slice.place + 1] = 0;
  }
}

uint64_t MicroBatches::taken_slice(const DataSlice& slice, size_t step) {
  const auto [found, is_new] = slices_.try_emplace({slice.data, slice.begin});
  if (!is_new) return found->second;
  value(slice.data);
  const int place = graph_.place_of(slice.data);
  const uint64_t id = found->second = graph_.draft();
  graph_.copy({step, 0}, place, {id, slice.bytes}, {{id, 0, slice.data, slice.begin, slice.bytes}});
  ended_.insert(id);
  Value& one = made(id, slice.bytes, slice.view->dtype, step);
  one.whole = id;
  const int64_t period = Batches::period_of_rows(*slice.view, 0, slice.bytes, shape_.parts);
  if (period == 0) return id;
  one.is_batch = true;
  cut(one, period, step);
  return id;
}

void MicroBatches::cut(Value& value, int64_t period, size_t step) {
  const int64_t row = period / shape_.parts;
  if (value.bytes / period > kPiecesMax) throw NotPipelined("its batches lie in too many pieces");
  const uint64_t whole = *value.whole;
  for (int64_t part = 0; part < shape_.parts; ++part) {
    const Task::Made made{graph_.draft(), bytes_of_part(value.bytes)};
    std::vector<Task::Range> ranges;
    for (int64_t begin = 0, at = 0; begin < value.bytes; begin += period, at += row) ranges.push_back({made.id, at, whole, begin + part * row, row});
    graph_.copy({step, part}, graph_.place_of(whole), made, std::move(ranges));
    value.parts.push_back(made.id);
  }
  value.period = period;
}

uint64_t MicroBatches::made_whole(Value& value, size_t step, uint64_t id) {
  if (value.whole) return *value.whole;
  const Task::Made made{is_named(id) && !value.was_there && !graph_.knows(id) ? id : graph_.draft(), value.bytes};
  if (value.is_untouched) {
    value.is_untouched = false;
    graph_.copy({step, 0}, 0, made, {});
    value.whole = made.id;
    return made.id;
  }
  const int64_t row = value.period / shape_.parts;
  if (value.bytes / value.period > kPiecesMax) throw NotPipelined("what it makes lies in too many pieces");
  const int place = graph_.place_of(value.parts.front());
  std::vector<Task::Range> ranges;
  for (int64_t part = 0; part < shape_.parts; ++part) {
    const uint64_t source = graph_.at(value.parts[static_cast<size_t>(part)], place, {step, part});
    for (int64_t begin = 0, at = 0; begin < value.bytes; begin += value.period, at += row) ranges.push_back({made.id, begin + part * row, source, at, row});
  }
  graph_.copy({step, shape_.parts}, place, made, std::move(ranges));
  value.whole = made.id;
  return made.id;
}

void MicroBatches::merge(const std::vector<uint64_t>& parts, size_t lead, const Placement& placement, int64_t bytes, size_t step) {
  if (placement.sharing == Sharing::kCopies || bytes == 0) return;
  if (placement.sharing != Sharing::kSum && placement.sharing != Sharing::kMean) throw NotPipelined("it looks for the largest or the least of a batch");
  const auto dtype = static_cast<c10::ScalarType>(placement.dtype);
  const bool is_whole_number = c10::isIntegralType(dtype, /*includeBool=*/true);
  const auto tag = is_whole_number ? wire::Tag::kScalarInt : wire::Tag::kScalarDouble;
  const uint64_t one = is_whole_number ? wire::zigzag_word(1) : wire::bits_word(1);
  const int place = graph_.place_of(parts[lead]);
  const uint64_t sum = in_place(gang_.templates(), "add_.Tensor", {flat(dtype, bytes), flat(dtype, bytes), number_of(tag)});
  const auto add = [&](uint64_t target, uint64_t summand, size_t part) {
    const TaskGraph::Position position{step, static_cast<int64_t>(part)};
    const int where = graph_.place_of(target);
    const uint64_t other = graph_.at(summand, where, position);
    graph_.call(position, where, sum, gang_.templates().own_plan(sum), {target, 0, other, 0, one}, {target});
  };
  const auto rows = static_cast<size_t>(shape_.rows);
  for (size_t part = rows; part < parts.size(); ++part) add(parts[part % rows], parts[part], part);
  for (size_t first = 0; first < rows; ++first) {
    if (first != lead) add(parts[lead], parts[first], parts.size() - 1);
  }
  if (placement.sharing != Sharing::kMean) return;
  wire::Argument count = number_of(wire::Tag::kScalarTensor);
  count.dtype = static_cast<uint8_t>(c10::ScalarType::Double);
  count.flag = true;
  const uint64_t mean = in_place(gang_.templates(), "div_.Tensor", {flat(dtype, bytes), count});
  graph_.call({step, shape_.parts}, place, mean, gang_.templates().own_plan(mean), {parts[lead], 0, wire::bits_word(static_cast<double>(shape_.parts))}, {parts[lead]});
}

// Calls.

Held MicroBatches::held(uint64_t id) {
  const Value& one = value(id);
  if (one.is_untouched) return {std::nullopt, one.bytes, true, false};
  if (!one.parts.empty()) return {Placement{Sharing::kRows, one.period, 0}, one.bytes, false, false};
  return {Placement{Sharing::kCopies, 0, 0}, one.bytes, false, false};
}

int64_t MicroBatches::missing_bytes(const Value& value, int place) const {
  if (value.parts.empty()) return value.whole ? graph_.missing_bytes(*value.whole, place) : 0;
  int64_t bytes = 0;
  for (const uint64_t part : value.parts) bytes += graph_.missing_bytes(part, place);
  return bytes;
}

// That of the largest weight that belongs to one; else, of what makes a weight's gradient, that of the weight; else where the fewest bytes are missing, and what is the oldest, of what was made here.
int MicroBatches::stage_for(const Call& call) {
  const Value* weight = nullptr;
  int stage = 0;
  std::vector<const Value*> here, batches, others;
  for_each_tensor(call.plan, call.words, [&](size_t, uint64_t id) {
    const Value& one = value(id);
    if (one.is_untouched || one.bytes == 0) return;
    const auto found = shape_.stages.find(id);
    if (found != shape_.stages.end() && (weight == nullptr || one.bytes > weight->bytes)) {
      weight = &one;
      stage = shape_.stage_of(found->second);
    }
    (one.is_batch ? batches : one.was_there ? others : here).push_back(&one);
  });
  if (weight != nullptr) return stage;
  if (const auto wanted = stage_wanted_of(call)) return *wanted;
  const auto& among = !here.empty() ? here : !batches.empty() ? batches : others;
  if (among.empty()) return 0;
  const auto missing = [&](const Value& one, int there) {
    int64_t bytes = 0;
    for (size_t part = 0; part < one.parts.size(); ++part) bytes += graph_.missing_bytes(one.parts[part], shape_.place_of(there, static_cast<int64_t>(part)));
    if (!one.parts.empty()) return bytes;
    bytes = one.bytes;
    for (int row = 0; row < shape_.rows; ++row) bytes = std::min(bytes, graph_.missing_bytes(*one.whole, shape_.place_of(there, row)));
    return bytes;
  };
  std::tuple<int64_t, int64_t, size_t, int> best{-1, 0, 0, 0};
  for (const Value* one : among) {
    const int there = shape_.stage_of(graph_.place_of(one->first()));
    int64_t bytes = 0;
    for (const Value* other : among) bytes += missing(*other, there);
    const std::tuple<int64_t, int64_t, size_t, int> rank{bytes, -one->bytes, one->since, there};
    if (std::get<0>(best) < 0 || rank < best) best = rank;
  }
  return std::get<3>(best);
}

// Of the largest that it makes, so that a gradient is sent nowhere.
std::optional<int> MicroBatches::stage_wanted_of(const Call& call) const {
  std::vector<const OutputPlan*> outputs;
  flatten(call.plan.outputs, outputs);
  std::optional<int> stage;
  int64_t most = 0;
  for_each_made(call.plan, call.words, [&](size_t number, uint64_t id) {
    const auto wanted = wanted_.find(id);
    const int64_t bytes = outputs[number]->storage_bytes;
    if (wanted == wanted_.end() || (stage && bytes <= most)) return;
    stage = shape_.stage_of(wanted->second);
    most = bytes;
  });
  return stage;
}

int MicroBatches::place_for(const Call& call) {
  std::pair<int64_t, int> best{-1, 0};
  for (int row = 0; row < shape_.rows; ++row) {
    std::pair<int64_t, int> rank{0, shape_.place_of(call.stage, row)};
    for_each_tensor(call.plan, call.words, [&](size_t, uint64_t id) { rank.first += missing_bytes(values_.at(id), rank.second); });
    if (best.first < 0 || rank < best) best = rank;
  }
  return best.second;
}

size_t MicroBatches::lead_of(const Call& call, uint64_t id) const {
  const auto wanted = wanted_.find(id);
  return wanted == wanted_.end() || shape_.stage_of(wanted->second) != call.stage ? 0 : static_cast<size_t>(wanted->second % shape_.rows);
}

void MicroBatches::carry_out(Call call) {
  if (!call.plan.sparse.empty()) throw NotPipelined("it has sparse tensors");
  take_slices(call);
  find_batch(call);
  call.stage = stage_for(call);
  bool has_parts = false;
  for_each_tensor(call.plan, call.words, [&](size_t, uint64_t id) { has_parts = has_parts || !value(id).parts.empty(); });
  if (!has_parts) return once(call);
  const Way& way = ways_.of({call.number, &call.plan, call.words}, [this](uint64_t id) { return held(id); });
  if (!serves(way, call)) return once(call);
  divided_end_ = call.step + 1;
  if (way.composition) composed(way, call);
  else divided(way, call);
}

bool MicroBatches::serves(const Way& way, const Call& call) {
  if (!way.is_divided() || !way.written.empty() || (way.starts.empty() && !way.composition)) return false;
  if (way.zero_word && wire::bits_value(call.words[*way.zero_word]) != 0) return false;
  for (int64_t part = 0; part < shape_.parts; ++part) {
    if (!local_words(way, call.plan, call.words, static_cast<int>(part), shape_.parts)) return false;
  }
  const auto writes = writes_of(call.plan);
  size_t tensor = 0;
  bool fits = true;
  for_each_tensor(call.plan, call.words, [&](size_t, uint64_t id) {
    const Value& one = value(id);
    const int64_t period = way.fresh.empty() ? 0 : way.fresh[tensor];
    const bool is_in_parts = !one.parts.empty() || period != 0;
    fits = fits && (period == 0 || one.bytes % period == 0) && (is_in_parts || !writes[tensor]) && (period == 0 || !one.was_there || !one.parts.empty());
    ++tensor;
  });
  return fits && (!way.composition || !way.composition->fits || way.composition->fits(call.words));
}

void MicroBatches::once(Call& call) {
  const TaskGraph::Position position{call.step, 0};
  const int place = place_for(call);
  const wire::Words client = call.words;
  std::map<uint64_t, uint64_t> names;
  for_each_tensor(call.plan, client, [&](size_t, uint64_t id) {
    if (names.count(id) == 0) names.emplace(id, graph_.at(made_whole(value(id), call.step, id), place, position));
  });
  std::vector<const OutputPlan*> outputs;
  flatten(call.plan.outputs, outputs);
  std::vector<uint64_t> made_ids;
  for_each_made(call.plan, client, [&](size_t, uint64_t id) { made_ids.push_back(is_named(id) ? id : graph_.draft()); });
  auto words = Renaming(call.plan, client).given([&](uint64_t id) { return names.at(id); }).made([&](size_t number) { return made_ids[number]; }).words();
  const auto written = written_of(call.plan, words);
  graph_.call(position, place, call.number, call.plan, std::move(words), written);
  for (const uint64_t id : written_of(call.plan, client)) {
    Value& one = value(id);
    one.whole = names.at(id);
    one.parts.clear();
  }
  const bool makes_batch = Batches::makes_batch(call.plan, client);
  for_each_made(call.plan, client, [&](size_t number, uint64_t id) {
    Value& one = made(id, outputs[number]->storage_bytes, outputs[number]->layout->dtype, call.step);
    one.whole = made_ids[number];
    const int64_t period = makes_batch ? Batches::period_of_rows(*outputs[number]->layout, 0, one.bytes, shape_.parts) : 0;
    if (period == 0) return;
    one.is_batch = true;
    cut(one, period, call.step);
  });
}

void MicroBatches::place_untouched(const Way& way, const Call& call) {
  size_t tensor = 0;
  for_each_tensor(call.plan, call.words, [&](size_t, uint64_t id) {
    const int64_t period = way.fresh.empty() ? 0 : way.fresh[tensor];
    ++tensor;
    Value& one = value(id);
    if (one.is_untouched && period != 0) {
      one.is_untouched = false;
      one.period = period;
      for (int64_t part = 0; part < shape_.parts; ++part) {
        one.parts.push_back(graph_.draft());
        graph_.copy({call.step, part}, place_of(call, part), {one.parts.back(), bytes_of_part(one.bytes)}, {});
      }
    } else if (one.is_untouched) {
      made_whole(one, call.step, id);
    } else if (period != 0 && one.parts.empty()) {
      cut(one, period, call.step);
    }
  });
}

wire::Words MicroBatches::words_of_part(const Way& way, Call& call, int64_t part) {
  return Renaming(call.plan, local_words(way, call.plan, call.words, static_cast<int>(part), shape_.parts).value())
      .given([&](uint64_t id) {
        const Value& one = value(id);
        return graph_.at(one.parts.empty() ? *one.whole : one.parts[static_cast<size_t>(part)], place_of(call, part), {call.step, part});
      })
      .words();
}

// From here on the parts are what the calls of the parts have written to.
void MicroBatches::note_written(const Call& call, const std::vector<wire::Words>& words) {
  const auto writes = writes_of(call.plan);
  size_t tensor = 0;
  for_each_tensor(call.plan, call.words, [&](size_t index, uint64_t id) {
    if (!writes[tensor++]) return;
    Value& one = value(id);
    one.whole.reset();
    for (size_t part = 0; part < words.size(); ++part) one.parts[part] = words[part][index];
  });
}

void MicroBatches::divided(const Way& way, Call& call) {
  place_untouched(way, call);
  Plan& local = gang_.templates().own_plan(way.definition);
  std::vector<uint64_t> ids;
  for_each_made(call.plan, call.words, [&](size_t, uint64_t id) { ids.push_back(id); });
  std::vector<std::vector<uint64_t>> made_ids(ids.size());
  std::vector<size_t> leads;
  for (const uint64_t id : ids) leads.push_back(lead_of(call, id));
  std::vector<wire::Words> all;
  for (int64_t part = 0; part < shape_.parts; ++part) {
    for (size_t number = 0; number < ids.size(); ++number) {
      const bool is_lead = static_cast<size_t>(part) == leads[number], takes_name = is_lead && way.made[number].placement.sharing != Sharing::kRows && is_named(ids[number]);
      made_ids[number].push_back(takes_name ? ids[number] : graph_.draft());
    }
    auto words = Renaming(local, words_of_part(way, call, part)).made([&](size_t number) { return made_ids[number].back(); }).words();
    all.push_back(words);
    const auto written = written_of(local, words);
    graph_.call({call.step, part}, place_of(call, part), way.definition, local, std::move(words), written);
  }
  note_written(call, all);
  std::vector<const OutputPlan*> outputs;
  flatten(call.plan.outputs, outputs);
  for (size_t number = 0; number < ids.size(); ++number) {
    const auto& [placement, bytes] = way.made[number];
    Value& one = made(ids[number], bytes, outputs[number]->layout->dtype, call.step);
    if (placement.sharing == Sharing::kRows) {
      one.parts = made_ids[number];
      one.period = placement.period;
      continue;
    }
    one.whole = made_ids[number][leads[number]];
    merge(made_ids[number], leads[number], placement, bytes, call.step);
  }
}

void MicroBatches::composed(const Way& way, Call& call) {
  place_untouched(way, call);
  const Composition& composition = *way.composition;
  std::vector<uint64_t> results;
  for_each_made(call.plan, call.words, [&](size_t, uint64_t id) { results.push_back(id); });
  std::vector<wire::Words> words;
  std::vector<std::vector<uint64_t>> ids(static_cast<size_t>(shape_.parts));  // of what is made, by part
  std::vector<size_t> leads;
  for (const auto& made : composition.made) leads.push_back(made.result ? lead_of(call, results[*made.result]) : 0);
  for (int64_t part = 0; part < shape_.parts; ++part) {
    words.push_back(words_of_part(way, call, part));
    for (size_t number = 0; number < composition.made.size(); ++number) {
      const auto& made = composition.made[number];
      const bool is_lead = static_cast<size_t>(part) == leads[number], takes_name = is_lead && made.result && made.placement.sharing != Sharing::kRows && is_named(results[*made.result]);
      ids[static_cast<size_t>(part)].push_back(takes_name ? results[*made.result] : graph_.draft());
      if (made.from_zeros) graph_.copy({call.step, part}, place_of(call, part), {ids[static_cast<size_t>(part)].back(), made.placement.bytes_of(made.bytes, shape_.parts)}, {});
    }
  }
  std::vector<bool> is_merged(composition.made.size(), false);
  const auto merged = [&](size_t number) {
    if (is_merged[number]) return;
    is_merged[number] = true;
    std::vector<uint64_t> parts;
    for (const auto& of_part : ids) parts.push_back(of_part[number]);
    const uint64_t merged_id = parts[leads[number]];
    merge(parts, leads[number], composition.made[number].placement, composition.made[number].bytes, call.step);
    for (auto& of_part : ids) of_part[number] = merged_id;
  };
  for (const auto& step : composition.steps) {
    for (const size_t number : step.sums) {
      merged(number);
      for (int64_t part = 0; part < shape_.parts; ++part) {
        auto& sum = ids[static_cast<size_t>(part)][number];
        sum = graph_.at(sum, place_of(call, part), {call.step, part});
      }
    }
    Plan& plan = gang_.templates().own_plan(step.definition);
    for (int64_t part = 0; part < shape_.parts; ++part) {
      const auto place = static_cast<size_t>(part);
      auto of_step = composition.words_of(step, {words[place], ids[place], static_cast<int>(part)});
      const auto written = written_of(plan, of_step);
      graph_.call({call.step, part}, place_of(call, part), step.definition, plan, std::move(of_step), written);
    }
  }
  note_written(call, words);
  std::vector<const OutputPlan*> outputs;
  flatten(call.plan.outputs, outputs);
  for (size_t number = 0; number < composition.made.size(); ++number) {
    const auto& one = composition.made[number];
    if (!one.result) continue;
    Value& value = made(results[*one.result], one.bytes, outputs[*one.result]->layout->dtype, call.step);
    if (one.placement.sharing == Sharing::kRows) {
      for (const auto& of_part : ids) value.parts.push_back(of_part[number]);
      value.period = one.placement.period;
      continue;
    }
    merged(number);
    value.whole = ids[leads[number]][number];
  }
}

// Results.

void MicroBatches::finish() {
  std::vector<uint64_t> ids;
  for (const auto& [id, one] : values_) {
    if (!one.was_there && is_result(id)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    Value& one = values_.at(id);
    const uint64_t whole = made_whole(one, shape_.end, id);
    if (whole != id) {
      if (graph_.knows(id)) throw NotPipelined("it writes to what it made on another device");
      graph_.copy({shape_.end, shape_.parts}, graph_.place_of(whole), {id, one.bytes}, {{id, 0, whole, 0, one.bytes}});
    }
    results_.push_back({id, graph_.place_of(id), one.bytes, one.dtype});
  }
}

}  // namespace forebay::worker
