#include "parallel/step_record.h"

#include "gang/call_storages.h"

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
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) {
    const auto [found, is_new] = storages_.try_emplace(id);
    if (is_new) {
      const Entry& entry = storages.at(id);
      found->second = {entry.bytes(), entry.is_untouched(), !entry.is_untouched(), 0};
    }
    found->second.last = calls_.size();
  });
  std::vector<const OutputPlan*> made;
  flatten(plan.outputs, made);
  auto output = made.begin();
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) { storages_[id] = {(*output++)->storage_bytes, false, false, calls_.size()}; });
  calls_.push_back({number, &plan, words});
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
