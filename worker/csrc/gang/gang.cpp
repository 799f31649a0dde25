#include "gang/gang.h"

#include <algorithm>
#include <utility>

#include "call/call_storages.h"

namespace forebay::worker {

std::vector<GangTemplates::Part> Gang::parts_of(uint64_t number, const wire::Words& words) {
  if (templates_.length_of_items(number) == 0) return {};
  std::vector<std::vector<int64_t>> bytes;  // of each item at each device
  for (const auto& ids : templates_.items_of(number, words)) bytes.push_back(memory_.load_of(ids, 0).there);
  const auto lists = homes_.divided(bytes);
  if (lists.size() < 2) return {};
  std::vector<GangTemplates::Part> parts;
  for (const auto& list : lists) parts.push_back(templates_.part_of_items(number, words, list));
  return parts;
}

void Gang::settings(uint64_t bits) {
  for (const auto& other : others_) other->settings(bits);
}

void Gang::forget() {
  for (const auto& other : others_) other->forget();
  templates_.forget();
}

void Gang::forget_operators() {
  for (const auto& other : others_) other->renumber();
  templates_.forget_operators();
}

void Gang::limit(int64_t bytes) {
  for (const auto& other : others_) other->limit(bytes);
}

void Gang::send(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence, const Plan* of) {
  Rank& other = rank(place);
  const Definition& source = templates_.definition_of(definition);
  sent_.push_back({place, other.calls(), sequence, &(of == nullptr ? plan : *of).op.schema().name(), {}});
  other.call(definition, source, source.op, templates_.operator_definition_of(source.op), plan.words, words);
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) { sent_.back().fresh.push_back(id); });
}

void Gang::call(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence) {
  send(place, definition, plan, words, sequence);
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) {
    Entry& entry = storages_.at(id);
    entry.live_elsewhere(std::make_unique<RankMemory>(rank(place), id, entry.bytes(), /*made=*/true));
  });
}

void Gang::withdraw(const Plan& plan, const wire::Words& words) {
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) {
    for (const auto& other : others_) other->free(id);
  });
}

void Gang::note_new(uint64_t id) {
  if (!sent_.empty()) sent_.back().fresh.push_back(id);
}

std::optional<Gang::Stopped> Gang::settle() {
  if (sent_.empty()) return std::nullopt;
  std::optional<Stopped> stopped;
  for (auto& failed : failures()) {
    if (!stopped || failed.failure.sequence < stopped->failure.sequence) stopped = Stopped{std::move(failed.failure), {}};
  }
  const auto sent = std::exchange(sent_, {});
  if (!stopped) return std::nullopt;
  for (const auto& one : sent) {
    if (one.sequence >= stopped->failure.sequence) stopped->never_made.insert(stopped->never_made.end(), one.fresh.begin(), one.fresh.end());
  }
  return stopped;
}

std::vector<Gang::Failed> Gang::failures() {
  flush();
  std::vector<Failed> failed;
  for (const auto& other : others_) {
    auto failure = other->settle();
    if (!failure) continue;
    name_failure(other->number(), *failure);
    failed.push_back({other->number(), std::move(*failure)});
  }
  return failed;
}

std::vector<Gang::Failed> Gang::settle_each() {
  auto failed = failures();
  sent_.clear();
  return failed;
}

void Gang::name_failure(int place, Failure& failure) const {
  const auto found = std::find_if(sent_.begin(), sent_.end(), [&](const Sent& one) { return one.place == place && one.call == failure.sequence; });
  if (found == sent_.end()) return;
  failure.sequence = found->sequence;
  failure.op = *found->name;
}

void Gang::flush() {
  for (const auto& other : others_) other->flush();
}

}  // namespace forebay::worker
