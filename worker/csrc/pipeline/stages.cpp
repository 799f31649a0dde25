#include "pipeline/stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "call/call_storages.h"
#include "parallel/batches.h"
#include "parallel/call_seconds.h"

namespace forebay::worker {

namespace {

std::unordered_set<uint64_t> written_in(const Path& path, const Layers::PlanOf& plan_of) {
  std::unordered_set<uint64_t> written;
  for (const wire::Step* step : path) {
    if (wire::is_allocation(step->key)) continue;
    const auto ids = written_of(plan_of(wire::key_value(step->key)), words_of(*step));
    written.insert(ids.begin(), ids.end());
  }
  return written;
}

}  // namespace

// Weights were there before and are the same each time. What rows are taken of by indices is one where the segment writes to it, as a table of words that
// is trained; else it is data.
Layers::OfBatch Layers::of_batch(const Path& path, size_t begin, const SlicedData& data, Storages& storages, const PlanOf& plan_of) {
  OfBatch found;
  const auto written = written_in(path, plan_of);
  std::unordered_set<uint64_t> made;
  for (size_t index = begin; index < path.size(); ++index) {
    const wire::Step& step = *path[index];
    if (wire::is_allocation(step.key) || !plan_of(wire::key_value(step.key)).mutated.empty()) continue;
    const bool makes_batch = Batches::makes_batch(plan_of(wire::key_value(step.key)), words_of(step));
    const bool is_of_batch = makes_batch || std::any_of(step.slots.begin(), step.slots.end(), [&](const wire::Slot& slot) {
      return slot.kind == wire::Word::kStorage && (made.count(slot.last) != 0 || data.count(slot.last) != 0 || (slot.moves && storages.has(slot.last)));
    });
    if (!is_of_batch) continue;
    found.steps.push_back(index);
    const size_t first = found.uses.size();
    for (const auto& slot : step.slots) {
      if (slot.kind == wire::Word::kNew) made.insert(slot.last);
      const bool may_be_weight = slot.kind == wire::Word::kStorage && !slot.moves && data.count(slot.last) == 0 && (!makes_batch || written.count(slot.last) != 0);
      if (may_be_weight && storages.has(slot.last) && storages.at(slot.last).bytes() > 0) found.uses.push_back({index, slot.last});
    }
    std::stable_sort(found.uses.begin() + static_cast<std::ptrdiff_t>(first), found.uses.end(),
                     [&](const Use& one, const Use& other) { return storages.at(one.weight).bytes() > storages.at(other.weight).bytes(); });
  }
  return found;
}

Layers::Layers(const Path& path, size_t begin, const SlicedData& data, Gang& gang, Storages& storages, const PlanOf& plan_of) {
  const auto all = of_batch(path, begin, data, storages, plan_of);
  const auto& uses = all.uses;
  std::unordered_map<uint64_t, std::vector<size_t>> steps;  // by weight, where it is the largest one
  std::map<size_t, uint64_t> firsts;                        // weights, by the step that uses them first
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    if (use != uses.begin() && (use - 1)->step == use->step) continue;
    auto& of_weight = steps[use->weight];
    if (of_weight.empty()) firsts.emplace(use->step, use->weight);
    of_weight.push_back(use->step);
  }
  if (firsts.empty()) return;
  const size_t forward_end = firsts.rbegin()->first;
  for (const auto& [first, weight] : firsts) {
    size_t last = first;
    for (const size_t step : steps[weight]) last = step <= forward_end ? std::max(last, step) : last;
    const auto next = firsts.upper_bound(first);
    if (next != firsts.end() && last >= next->first) continue;
    numbers_.emplace(weight, layers_.size());
    layers_.push_back({weight, storages.at(weight).bytes()});
  }
  find_companions(uses, storages);
  add_up(path, gang, all);
}

void Layers::find_companions(const std::vector<Use>& uses, Storages& storages) {
  std::unordered_set<uint64_t> shared;
  std::optional<size_t> layer;
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    if (use == uses.begin() || (use - 1)->step != use->step) {
      const auto found = numbers_.find(use->weight);
      layer = found == numbers_.end() ? std::nullopt : std::optional(found->second);
      continue;
    }
    if (!layer || numbers_.count(use->weight) != 0) continue;
    const auto [known, is_new] = companions_.emplace(use->weight, *layer);
    if (!is_new && known->second != *layer) shared.insert(use->weight);
  }
  for (const uint64_t weight : shared) companions_.erase(weight);
  for (const auto& [weight, of_layer] : companions_) layers_[of_layer].bytes += storages.at(weight).bytes();
}

void Layers::add_up(const Path& path, Gang& gang, const OfBatch& of_batch) {
  std::unordered_map<size_t, size_t> layer_of_step;
  for (const auto& use : of_batch.uses) {
    if (const auto found = numbers_.find(use.weight); found != numbers_.end()) layer_of_step.emplace(use.step, found->second);
  }
  size_t layer = 0;
  for (const size_t index : of_batch.steps) {
    if (layers_.empty()) return;
    if (const auto found = layer_of_step.find(index); found != layer_of_step.end()) layer = found->second;
    const uint64_t number = wire::key_value(path[index]->key);
    layers_[layer].seconds += seconds_of(gang.templates().template_of(number), gang.templates().operator_of(number), gang.rates());
  }
}

std::vector<size_t> Layers::balanced(size_t stages, By by) const {
  const auto cost = [by](const Layer& layer) { return by == By::kSeconds ? layer.seconds : static_cast<double>(layer.bytes); };
  const double all = std::accumulate(layers_.begin(), layers_.end(), 0.0, [&](double sum, const Layer& layer) { return sum + cost(layer); });
  std::vector<size_t> cuts;
  double before = 0;
  for (size_t layer = 0; layer < layers_.size() && cuts.size() + 1 < stages; ++layer) {
    const double until = before + cost(layers_[layer]), wanted = all * static_cast<double>(cuts.size() + 1) / static_cast<double>(stages);
    if (layer > 0 && until > wanted) cuts.push_back(until - wanted > wanted - before ? layer : layer + 1);
    before = until;
  }
  while (cuts.size() + 1 < stages) cuts.push_back(layers_.size());
  return cuts;
}

Stages Layers::divided(const std::vector<size_t>& cuts, int devices) const {
  Stages stages;
  std::vector<int64_t> kept((cuts.size() + 1) * static_cast<size_t>(devices), 0);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto first = kept.begin() + devices * (std::upper_bound(cuts.begin(), cuts.end(), layer) - cuts.begin());
    const auto least = std::min_element(first, first + devices);
    *least += layers_[layer].bytes;
    stages.emplace(layers_[layer].weight, static_cast<int>(least - kept.begin()));
  }
  for (const auto& [weight, layer] : companions_) stages.emplace(weight, stages.at(layers_[layer].weight));
  return stages;
}

}  // namespace forebay::worker
