#include "tier2/partition.h"

#include <algorithm>

namespace forebay::worker {

namespace {

constexpr uint64_t kRecordedMin = 8;  // calls; fewer are handed over about as fast one by one

bool takes_number_as_tensor(const ArgumentPlan& argument) {
  return argument.tag == wire::Tag::kScalarTensor || std::any_of(argument.items.begin(), argument.items.end(), takes_number_as_tensor);
}

// Why a graph would not compute what the call does the next time; empty where it would.
std::string obstacle(const Plan& plan, const wire::Step& step) {
  const auto& name = plan.op.schema().name();
  if (!plan.sparse.empty()) return name + " is given sparse tensors";
  if (!plan.breach.empty()) return name + " fails: " + plan.breach;
  if (!plan.bounds.empty()) return name + " is given numbers that are looked at each time";
  if (std::any_of(plan.arguments.begin(), plan.arguments.end(), takes_number_as_tensor)) return name + " is given a tensor of the host's";
  const auto drawn = step.slots.end() - (plan.random ? 2 : 0);
  const bool varies = std::any_of(step.slots.begin(), drawn, [](const wire::Slot& slot) { return slot.varies; });
  return varies ? name + " is given numbers that change" : "";
}

}  // namespace

Recording::Recording(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, size_t begin, size_t end)
    : begin_(begin), end_(end) {
  for (size_t index = begin; index < end; ++index) {
    const wire::Step& step = *path[index];
    freed_.emplace_back();
    if (index > begin) {
      for (const auto& slot : step.freed) {
        freed_.back().push_back(place_of(slot.last));
        places[freed_.back().back()].is_freed = true;
      }
    }
    if (wire::is_allocation(step.key)) {
      Place& place = places[place_of(step.slots.front().last)];
      place.is_made = true;
      place.bytes = static_cast<int64_t>(wire::key_value(step.key));
      words_.push_back({Kind::kStorage, places.size() - 1});
    } else {
      note_call(step, *plans[wire::key_value(step.key)]);
      ++calls_;
    }
  }
  places_of_ids_.clear();
}

size_t Recording::place_of(uint64_t id) {
  const auto [position, fresh] = places_of_ids_.try_emplace(id, places.size());
  if (fresh) places.emplace_back();
  return position->second;
}

size_t Recording::note_use(const wire::Slot& slot, const Layout& layout, bool writes) {
  const bool known = places_of_ids_.count(slot.last) != 0;
  const size_t number = place_of(slot.last);
  Place& place = places[number];
  if (!known) place.is_input = true;
  if (place.is_input) place.moves = place.moves || slot.moves;
  if (place.is_input) place.is_written = place.is_written || writes;
  const bool is_new_dtype = place.dtype != c10::ScalarType::Undefined && place.dtype != layout.dtype;
  place.dtype = is_new_dtype ? c10::ScalarType::Byte : layout.dtype;
  return number;
}

void Recording::note_call(const wire::Step& step, const Plan& plan) {
  std::vector<LayoutRef> tensors;
  for (const auto& argument : plan.arguments) flatten(argument, tensors);
  std::vector<const OutputPlan*> made;
  flatten(plan.outputs, made);
  struct Use {
    size_t place;
    int64_t offset;
    bool is_checked;  // what it holds before the part is what the call is given
  };
  std::vector<Use> uses(tensors.size());
  size_t tensor = 0, result = 0;
  const size_t drawn_from = step.slots.size() - (plan.random ? 2 : 0);
  for (size_t index = 0; index < step.slots.size(); ++index) {
    const auto& slot = step.slots[index];
    if (index >= drawn_from) {
      words_.push_back({index == drawn_from ? Kind::kDraw : Kind::kCounter, 0});
    } else if (slot.kind == wire::Word::kStorage) {
      while (!tensors[tensor]) ++tensor;
      const bool writes = std::find(plan.mutated.begin(), plan.mutated.end(), tensor) != plan.mutated.end();
      const auto known = places_of_ids_.find(slot.last);
      const bool untouched = known == places_of_ids_.end() || (places[known->second].is_input && !places[known->second].is_written);
      const size_t place = note_use(slot, *tensors[tensor], writes);
      uses[tensor] = {place, static_cast<int64_t>(step.slots[index + 1].last), untouched};
      words_.push_back({Kind::kStorage, place});
      ++tensor;
    } else if (slot.kind == wire::Word::kNew) {
      const size_t place = place_of(slot.last);
      places[place].is_made = true;
      places[place].bytes = made[result]->storage_bytes;
      places[place].dtype = made[result++]->layout->dtype;
      words_.push_back({Kind::kStorage, place});
    } else {
      words_.push_back({Kind::kSame, slot.last});
    }
  }
  for (const auto& range : plan.ranges) {
    if (uses[range.tensor].is_checked && tensors[range.tensor]) checks_.push_back({&plan, &range, uses[range.tensor].place, tensors[range.tensor], uses[range.tensor].offset});
  }
}

bool Recording::bind(const std::vector<wire::Step*>& path, Binding& binding) const {
  binding.ids.assign(places.size(), 0);
  binding.draws.clear();
  const auto bind_id = [&](size_t place, uint64_t id) {
    if (binding.ids[place] == 0) binding.ids[place] = id;
    return binding.ids[place] == id;
  };
  auto word = words_.begin();
  for (size_t index = begin_; index < end_; ++index) {
    const wire::Step& step = *path[index];
    const auto& freed = freed_[index - begin_];
    if (index > begin_ && step.freed.size() != freed.size()) return false;
    for (size_t one = 0; one < freed.size(); ++one) {
      if (!bind_id(freed[one], step.freed[one].last)) return false;
    }
    for (const auto& slot : step.slots) {
      switch (word->kind) {
        case Kind::kStorage:
          if (!bind_id(word->value, slot.last)) return false;
          break;
        case Kind::kSame:
          if (slot.last != word->value) return false;
          break;
        case Kind::kDraw:
          binding.draws.emplace_back(slot.last, 0);
          break;
        case Kind::kCounter:
          binding.draws.back().second = slot.last;
          break;
      }
      ++word;
    }
  }
  auto sorted = binding.ids;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

std::vector<Part> parts_of(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, const std::set<size_t>& excluded, std::string& why) {
  std::vector<Part> parts;
  const auto close = [&](size_t begin, size_t end, uint64_t calls) {
    if (begin == end) return;
    const bool is_recorded = calls >= kRecordedMin;
    if (!is_recorded && !parts.empty() && !parts.back().recording) {
      parts.back().end = end;
    } else {
      parts.push_back({begin, end});
      if (is_recorded) parts.back().recording.emplace(path, plans, begin, end);
    }
  };
  size_t begin = 0;
  uint64_t calls = 0;
  for (size_t index = 0; index < path.size(); ++index) {
    const wire::Step& step = *path[index];
    if (wire::is_allocation(step.key)) continue;
    const std::string reason = obstacle(*plans[wire::key_value(step.key)], step);
    if (reason.empty() && excluded.count(index) == 0) {
      ++calls;
      continue;
    }
    if (why.empty()) why = reason;
    close(begin, index, calls);
    close(index, index + 1, 0);
    begin = index + 1;
    calls = 0;
  }
  close(begin, path.size(), calls);
  return parts;
}

}  // namespace forebay::worker
