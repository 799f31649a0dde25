#include "parallel/step_record.h"

#include <algorithm>

#include "call/call_storages.h"

namespace forebay::worker {

namespace {

constexpr uint64_t kKindNumbersMax = 16;

}  // namespace

void StepRecord::begin(Kind kind) {
  forget();
  is_on_ = true;
  kind_ = std::move(kind);
}

void StepRecord::note_upload(Upload upload) {
  if (is_on_) uploads_.push_back(std::move(upload));
}

void StepRecord::note(uint64_t number, const Plan& plan, const wire::Words& words, Storages& storages) {
  if (!is_on_) return;
  words_ += words.size();
  if (words_ > kWordsMax) return forget();
  note_freed(storages);
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) {
    const auto [found, is_new] = storages_.try_emplace(id);
    if (!is_new) return;
    const Entry& entry = storages.at(id);
    found->second = {entry.bytes(), entry.is_untouched(), !entry.is_untouched()};
    alive_.push_back(id);
  });
  std::vector<const OutputPlan*> made;
  flatten(plan.outputs, made);
  auto output = made.begin();
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) {
    storages_[id] = {(*output++)->storage_bytes, false, false};
    alive_.push_back(id);
  });
  calls_.push_back({number, &plan, words});
}

// Before the next call.
void StepRecord::note_freed(const Storages& storages) {
  const auto is_freed = [&](uint64_t id) {
    if (storages.is_alive(id)) return false;
    storages_.at(id).last = calls_.size() - 1;
    return true;
  };
  alive_.erase(std::remove_if(alive_.begin(), alive_.end(), is_freed), alive_.end());
}

void put_kind(wire::Writer& out, const StepRecord::Kind& kind) {
  out.varint(kind.size());
  for (const uint64_t number : kind) out.varint(number);
}

StepRecord::Kind get_kind(wire::Reader& in) {
  StepRecord::Kind kind(in.count(kKindNumbersMax, "the numbers of a kind"));
  for (uint64_t& number : kind) number = in.varint();
  return kind;
}

}  // namespace forebay::worker
