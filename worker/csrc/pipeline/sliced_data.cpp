#include "pipeline/sliced_data.h"

#include "call/call_storages.h"
#include "parallel/slices.h"
#include "sharding/call_tensors.h"

namespace forebay::worker {

namespace {

bool is_slice(const Entry& data, const Layout& view) {
  return Slices::is_part(data, view) && !(data.told_end() && *data.told_end() != 0);
}

// The tensor that a call is given as its rows, if its offset changed since the segment came before.
void note_rows(const wire::Step& step, const Plan& plan, const wire::Words& words, Storages& storages, SlicedData& data) {
  const auto writes = writes_of(plan);
  const auto layouts = layouts_of(plan);
  size_t tensor = 0, read = 0;
  for_each_tensor(plan, words, [&](size_t place, uint64_t id) {
    const Layout& view = *layouts[tensor];
    if (writes[tensor++] || read++ != Slices::number_of_rows(plan)) return;
    if (step.slots[place + 1].varies && storages.has(id) && is_slice(storages.at(id), view)) data.insert(id);
  });
}

}  // namespace

SlicedData sliced_data_of(const Path& path, Templates& templates, Storages& storages) {
  SlicedData data;
  std::vector<uint64_t> written;
  for (const wire::Step* step : path) {
    if (wire::is_allocation(step->key)) continue;
    const Plan& plan = templates.known(wire::key_value(step->key));
    const auto words = words_of(*step);
    for (const uint64_t id : written_of(plan, words)) written.push_back(id);
    if (plan.sparse.empty()) note_rows(*step, plan, words, storages, data);
  }
  for (const uint64_t id : written) data.erase(id);
  return data;
}

std::vector<DataSlice> slices_of(const Plan& plan, const wire::Words& words, const SlicedData& data, Storages& storages) {
  std::vector<DataSlice> slices;
  if (data.empty()) return slices;
  const auto layouts = layouts_of(plan);
  auto layout = layouts.begin();
  for_each_tensor(plan, words, [&](size_t place, uint64_t id) {
    const Layout& view = **layout++;
    if (data.count(id) == 0 || !storages.has(id) || !is_slice(storages.at(id), view)) return;
    slices.push_back({place, id, &view, static_cast<int64_t>(words[place + 1]) * view.item_bytes, view.span_bytes()});
  });
  return slices;
}

}  // namespace forebay::worker
