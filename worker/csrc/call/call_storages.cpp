#include "call/call_storages.h"

#include <algorithm>
#include <utility>

#include <ATen/core/function_schema.h>

namespace forebay::worker {

namespace {

std::vector<uint64_t> each_once(std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Whether each storage word of a plan is of a tensor that the call writes to. `tensor`: as the plan counts tensors.
void collect_written(const Plan& plan, const std::vector<ArgumentPlan>& arguments, size_t& tensor, std::vector<bool>& written) {
  for (const auto& argument : arguments) {
    const bool mutated = std::find(plan.mutated.begin(), plan.mutated.end(), tensor) != plan.mutated.end();
    if (argument.tag == wire::Tag::kTensor) written.push_back(mutated);
    if (argument.tag == wire::Tag::kTensor || argument.tag == wire::Tag::kScalarTensor || argument.tag == wire::Tag::kNone) ++tensor;
    collect_written(plan, argument.items, tensor, written);
  }
}

}  // namespace

std::vector<uint64_t> storages_of(const Plan& plan, const wire::Words& words) {
  std::vector<uint64_t> ids;
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) { ids.push_back(id); });
  return each_once(std::move(ids));
}

std::vector<bool> writes_of(const Plan& plan) {
  std::vector<bool> written;
  size_t tensor = 0;
  collect_written(plan, plan.arguments, tensor, written);
  return written;
}

std::vector<uint64_t> written_of(const Plan& plan, const wire::Words& words) {
  if (plan.mutated.empty()) return {};
  const std::vector<bool> written = writes_of(plan);
  std::vector<uint64_t> ids;
  auto is_written = written.begin();
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) {
    if (*is_written++) ids.push_back(id);
  });
  return each_once(std::move(ids));
}

bool is_repeatable(const Plan& plan, const wire::Words& words) {
  if (plan.mutated.empty()) return true;
  for (const auto& argument : plan.op.schema().arguments()) {
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written && !argument.is_out()) return false;
  }
  std::vector<uint64_t> given;
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) { given.push_back(id); });
  const auto written = written_of(plan, words);
  return std::all_of(written.begin(), written.end(), [&](uint64_t id) { return std::count(given.begin(), given.end(), id) == 1; });
}

}  // namespace forebay::worker
