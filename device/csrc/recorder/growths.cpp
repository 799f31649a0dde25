#include "recorder/growths.h"

#include <optional>
#include <utility>

#include "forebay/wire.h"

namespace forebay {

void Growths::remember(const std::vector<uint64_t>& key, Growth growth) {
  const std::lock_guard lock(mutex_);
  if (known_.size() == wire::kTemplatesMax) known_.clear();
  known_.insert_or_assign(key, std::move(growth));
}

bool Growths::apply(const OperatorInfo& info, const torch::jit::Stack& stack, const std::vector<uint64_t>& key) {
  std::optional<Growth> growth;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) growth = found->second;
  }
  return growth && grow(info, stack, *growth);
}

void Growths::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

}  // namespace forebay
