#include "sharding/way.h"

namespace forebay::worker {

std::optional<wire::Words> local_words(const Way& way, const Plan& plan, const wire::Words& words, int place, int64_t devices) {
  wire::Words result = words;
  if (way.starts.empty()) return result;
  if (way.first_word && place != 0) result[*way.first_word] = 0;  // whichever kind of number it is
  auto start = way.starts.begin();
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] != wire::Word::kStorage) continue;
    uint64_t& offset = result[index + 1];
    if (start->kind == Way::Start::Kind::kPart) offset += static_cast<uint64_t>(place * start->step);
    if (start->kind == Way::Start::Kind::kRows) {
      const auto local = local_offset(static_cast<int64_t>(offset) * start->item_bytes, start->period, start->room, devices);
      if (!local) return std::nullopt;
      offset = static_cast<uint64_t>(*local / start->item_bytes);
    }
    ++start;
  }
  return result;
}

}  // namespace forebay::worker
