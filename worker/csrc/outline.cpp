#include "outline.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/core/stack.h>

#include "bounds.h"
#include "ranges.h"

namespace forebay::worker {

namespace {

constexpr size_t kChangingNumbersMax = 4096;
constexpr size_t kPlacesMax = 16384;

// Whether each element has a place of its own, and there is none between them.
bool is_gapless(const Layout& layout) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    if (layout.sizes[dim] != 1) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end(), [&](size_t one, size_t other) { return layout.strides[one] < layout.strides[other]; });
  int64_t next = 1;
  for (const size_t dim : dims) {
    if (layout.strides[dim] != next) return false;
    next *= layout.sizes[dim];
  }
  return true;
}

bool covers(const Layout& layout, int64_t offset, int64_t bytes) {
  return offset == 0 && layout.numel * layout.item_bytes == bytes && (layout.numel == 0 || is_gapless(layout));
}

size_t words_of(const ArgumentPlan& argument) {
  switch (argument.tag) {
    case wire::Tag::kTensor:
      return 2;
    case wire::Tag::kScalarTensor:
    case wire::Tag::kDouble:
    case wire::Tag::kScalarDouble:
    case wire::Tag::kScalarInt:
    case wire::Tag::kScalarBool:
      return 1;
    case wire::Tag::kDoubleList:
      return argument.count;
    default:
      return std::accumulate(argument.items.begin(), argument.items.end(), size_t{0}, [](size_t sum, const ArgumentPlan& item) { return sum + words_of(item); });
  }
}

// Which of a call's words is the first of an argument.
size_t words_before(size_t argument, const Plan& plan) {
  const auto end = plan.arguments.begin() + static_cast<std::ptrdiff_t>(argument);
  return std::accumulate(plan.arguments.begin(), end, size_t{0}, [](size_t sum, const ArgumentPlan& one) { return sum + words_of(one); });
}

// The whole number that a word binds, each time.
std::optional<int64_t> whole_number(const wire::Slot& slot) {
  constexpr double kExact = 1LL << 53;
  if (slot.varies) return std::nullopt;
  const double number = slot.kind == wire::Word::kNumber ? static_cast<double>(wire::zigzag_value(slot.last)) : wire::bits_value(slot.last);
  return std::abs(number) < kExact && number == std::floor(number) ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

// That an argument is, each time.
std::optional<int64_t> number_of(size_t argument, const wire::Step& step, const Plan& plan) {
  if (argument >= plan.arguments.size()) return std::nullopt;
  const auto tag = plan.arguments[argument].tag;
  const bool is_number = tag == wire::Tag::kScalarTensor || tag == wire::Tag::kScalarInt || tag == wire::Tag::kScalarDouble;
  return is_number ? whole_number(step.slots[words_before(argument, plan)]) : std::nullopt;
}

// From one to before the other, upwards or downwards.
std::optional<WholeNumbers> numbers_counted(std::optional<int64_t> from, std::optional<int64_t> to) {
  if (!from || !to) return std::nullopt;
  return WholeNumbers{{}, {{std::min(*from, *to + 1), std::max(*from, *to - 1)}}};
}

// Of the indices that tier 1 holds against something, be it here or in a kernel: a library takes some from the end of what they lead into.
std::vector<Bound> bounds_of(const Plan& plan) {
  auto bounds = plan.bounds;
  for (const auto& range : ranges_of(plan)) {
    const bool is_known = std::any_of(bounds.begin(), bounds.end(), [&](const Bound& bound) { return bound.argument == range.argument; });
    if (is_known || range.item || range.least != 0) continue;
    bounds.push_back({range.argument, range.most + 1, range.except.value_or(0), range.except ? Bound::Kind::kClasses : Bound::Kind::kOffsets});
  }
  return bounds;
}

// Whether all numbers from the least to the most lead to where the bound says.
bool is_within(const Bound& bound, int64_t least, int64_t most) {
  if (bound.kind == Bound::Kind::kClasses && least == bound.other && most == bound.other) return true;
  return (bound.kind == Bound::Kind::kOffsets || bound.kind == Bound::Kind::kClasses) && least >= 0 && most < bound.end;
}

// Attention says that it draws, whatever its dropout is: then it is a number of the call, and the segment's constant.
bool may_draw(const Plan& plan, const wire::Step& step) {
  const auto& schema = plan.op.schema();
  const auto probability = schema.argumentIndexWithName("dropout_p");
  if (!probability || schema.name().rfind("aten::_scaled_dot_product_", 0) != 0) return true;
  const auto& slot = step.slots[words_before(static_cast<size_t>(*probability), plan)];
  return slot.kind != wire::Word::kBits || slot.varies || wire::bits_value(slot.last) != 0;
}

// Whether all that it draws is a mask, which can be drawn before.
bool draws_mask(const Plan& plan) {
  constexpr size_t kTrain = 2;
  if (plan.op.schema().name() != "aten::native_dropout" || plan.arguments.size() <= kTrain || plan.arguments[0].tag != wire::Tag::kTensor) return false;
  const auto& train = plan.arguments[kTrain].prototype;
  return train.isNone() || (train.isBool() && train.toBool());
}

void refuse_kind(const Plan& plan, const wire::Step& step) {
  const auto& name = plan.op.schema().name();
  if (!plan.sparse.empty()) throw NotCompiled(name + " is given sparse tensors");
  if (!plan.breach.empty()) throw NotCompiled(name + " fails: " + plan.breach);
  if (plan.random && may_draw(plan, step) && !draws_mask(plan)) throw NotCompiled(name + " draws random numbers");
}

}  // namespace

Outline::Outline(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, Storages& storages, Layouts& layouts) {
  for (const wire::Step* step : path) {
    freed_.emplace_back();
    for (const auto& slot : step->freed) {
      if (step == path.front()) break;  // that was before
      const auto known = numbers_of_ids_.find(slot.last);
      const uint64_t number = known != numbers_of_ids_.end() ? known->second : add_place(slot.last);
      places_[number].is_freed = true;
      freed_.back().push_back(number);
    }
    if (wire::is_allocation(step->key)) {
      const uint64_t number = add_place(step->slots.front().last);
      places_[number].is_made = true;
      places_[number].bytes = static_cast<int64_t>(wire::key_value(step->key));
      places_[number].numbers = WholeNumbers{{}, {{0, 0}}};
      words_.push_back({Kind::kMade, false, number});
    } else {
      note_call(*step, *plans[wire::key_value(step->key)], storages);
      ++calls_;
    }
  }
  complete(layouts);
  numbers_of_ids_.clear();
}

uint64_t Outline::add_place(uint64_t id) {
  if (places_.size() >= kPlacesMax) throw NotCompiled("it uses more than " + std::to_string(kPlacesMax) + " storages");
  places_.emplace_back();
  if (!numbers_of_ids_.emplace(id, places_.size() - 1).second) throw NotCompiled("a storage's id comes twice");
  return places_.size() - 1;
}

void Outline::note_call(const wire::Step& step, const Plan& plan, Storages& storages) {
  refuse_kind(plan, step);
  std::vector<LayoutRef> tensors;
  for (const auto& argument : plan.arguments) flatten(argument, tensors);
  std::vector<const OutputPlan*> made;
  flatten(plan.outputs, made);
  std::vector<uint64_t> used(tensors.size());
  std::vector<int64_t> offsets(tensors.size());
  size_t tensor = 0, result = 0;
  const size_t drawn_from = step.slots.size() - (plan.random ? 2 : 0);
  for (size_t index = 0; index < step.slots.size(); ++index) {
    const auto& slot = step.slots[index];
    if (index == drawn_from && draws_mask(plan)) {
      note_draw(step, plan, made);
    } else if (index >= drawn_from) {
      words_.push_back({Kind::kIgnored, false, 0});
    } else if (slot.kind == wire::Word::kStorage) {
      while (!tensors[tensor]) ++tensor;
      const bool writes = std::find(plan.mutated.begin(), plan.mutated.end(), tensor) != plan.mutated.end();
      offsets[tensor] = static_cast<int64_t>(step.slots[index + 1].last);
      used[tensor] = note_use(slot.last, tensors[tensor], offsets[tensor], writes, storages);
      words_.push_back({Kind::kUsed, false, used[tensor]});
      ++tensor;
    } else if (slot.kind == wire::Word::kNew) {
      note_result(slot.last, *made[result++]);
    } else {
      note_number(slot);
    }
  }
  note_checks(plan, tensors, used, offsets);
  note_numbers(step, plan, used);
}

void WholeNumbers::add(const WholeNumbers& others) {
  inputs.insert(others.inputs.begin(), others.inputs.end());
  intervals.insert(others.intervals.begin(), others.intervals.end());
}

// What the call leaves in the storages that it writes to, and in the last one that it makes.
void Outline::note_numbers(const wire::Step& step, const Plan& plan, const std::vector<uint64_t>& used) {
  const auto numbers = numbers_made(step, plan, used);
  for (const size_t tensor : plan.mutated) {
    Place& place = places_[used[tensor]];
    if (!numbers || place.dtype != c10::ScalarType::Long) {
      place.numbers.reset();
    } else if (place.numbers) {
      place.numbers->add(*numbers);
    }
  }
  if (plan.new_storages > 0 && places_.back().dtype == c10::ScalarType::Long) places_.back().numbers = numbers;
}

// As far as it is known without computing them.
std::optional<WholeNumbers> Outline::numbers_made(const wire::Step& step, const Plan& plan, const std::vector<uint64_t>& used) const {
  const auto name = base_name(plan);
  if (name == "zero") return WholeNumbers{{}, {{0, 0}}};
  if (name == "add" && number_of(1, step, plan) == 0) return numbers_of(0, step, plan, used);
  if (name == "arange") return numbers_counted(number_of(0, step, plan), number_of(1, step, plan));
  if (name == "copy" || name == "fill") return numbers_of(1, step, plan, used);
  // Where the largest of a window lies is a place of its plane, whatever is there.
  const LayoutRef& self = plan.arguments.front().layout;
  if (name == "max_pool2d_with_indices" && self && self->sizes.size() >= 2) return WholeNumbers{{}, {{0, self->sizes[self->sizes.size() - 2] * self->sizes.back() - 1}}};
  return std::nullopt;
}

// Those of a tensor, or the number that the argument is.
std::optional<WholeNumbers> Outline::numbers_of(size_t argument, const wire::Step& step, const Plan& plan, const std::vector<uint64_t>& used) const {
  const auto& source = plan.arguments[argument];
  if (source.tag == wire::Tag::kTensor) {
    std::vector<LayoutRef> before;
    for (size_t index = 0; index < argument; ++index) flatten(plan.arguments[index], before);
    const Place& place = places_[used[before.size()]];
    return place.dtype == c10::ScalarType::Long || place.dtype == c10::ScalarType::Int ? place.numbers : std::nullopt;
  }
  const auto number = number_of(argument, step, plan);
  return number ? std::optional(WholeNumbers{{}, {{*number, *number}}}) : std::nullopt;
}

void Outline::note_number(const wire::Slot& slot) {
  if (!slot.varies) return words_.push_back({Kind::kConstant, slot.kind == wire::Word::kBits, slot.last});
  if (slot.kind != wire::Word::kBits) throw NotCompiled("a whole number or an offset changes from time to time");
  if (numbers_ >= kChangingNumbersMax) throw NotCompiled("more than " + std::to_string(kChangingNumbersMax) + " numbers change");
  words_.push_back({Kind::kNumber, false, numbers_++});
}

void Outline::note_draw(const wire::Step& step, const Plan& plan, const std::vector<const OutputPlan*>& made) {
  constexpr size_t kProbability = 2;  // the word behind the tensor's
  const auto& probability = step.slots[kProbability];
  if (plan.arguments[1].tag != wire::Tag::kDouble || probability.varies || made.size() != 2) throw NotCompiled("a dropout whose probability changes");
  const double kept = 1 - wire::bits_value(probability.last);
  if (!(kept >= 0 && kept <= 1)) throw NotCompiled("a dropout whose probability is none");
  words_.push_back({Kind::kDrawn, false, draws_.size()});
  draws_.push_back({kept, made[1]->layout});
}

uint64_t Outline::note_use(uint64_t id, const LayoutRef& layout, int64_t offset, bool writes, Storages& storages) {
  const auto known = numbers_of_ids_.find(id);
  const uint64_t number = known != numbers_of_ids_.end() ? known->second : add_place(id);
  Place& place = places_[number];
  if (place.is_freed) throw NotCompiled("a storage is used after it was freed");
  if (known == numbers_of_ids_.end()) {
    const Entry& entry = storages.at(id);
    if (entry.cause() || entry.shortfall()) throw NotCompiled("it uses what was never made");
    place.is_input = true;
    place.bytes = entry.bytes();
    place.numbers = WholeNumbers{{number}, {}};
  }
  if (layout->conj || layout->neg || c10::isComplexType(layout->dtype)) throw NotCompiled("complex tensors");
  if (place.has_dtype && place.dtype != layout->dtype) throw NotCompiled("a storage is looked at in two dtypes");
  place.has_dtype = true;
  place.dtype = layout->dtype;
  const bool whole = covers(*layout, offset, place.bytes);
  if (whole && !place.layout) place.layout = layout;
  place.is_written = place.is_written || writes;
  return number;
}

void Outline::note_result(uint64_t id, const OutputPlan& output) {
  const uint64_t number = add_place(id);
  Place& place = places_[number];
  place.is_made = true;
  place.bytes = output.storage_bytes;
  if (output.layout->conj || output.layout->neg || c10::isComplexType(output.layout->dtype)) throw NotCompiled("complex tensors");
  if (!covers(*output.layout, 0, place.bytes)) throw NotCompiled("a result has gaps between its elements");
  place.has_dtype = true;
  place.dtype = output.layout->dtype;
  place.layout = output.layout;
  words_.push_back({Kind::kMade, false, number});
}

// A library looks at no index before it uses it, so all are looked at before: those that are there.
void Outline::note_checks(const Plan& plan, const std::vector<LayoutRef>& tensors, const std::vector<uint64_t>& used, const std::vector<int64_t>& offsets) {
  for (const auto& bound : bounds_of(plan)) {
    if (bound.kind == Bound::Kind::kZero) throw NotCompiled(plan.op.schema().name() + " is given a number that must be 0");
    std::vector<LayoutRef> before;
    for (size_t index = 0; index < bound.argument; ++index) flatten(plan.arguments[index], before);
    const size_t tensor = before.size();
    const Place& place = places_[used[tensor]];
    if (!place.is_made && !place.is_written) {
      checks_.push_back({&plan, bound, used[tensor], tensors[tensor], offsets[tensor]});
    } else if (place.numbers) {
      check_numbers(plan, bound, *place.numbers);
    } else {
      throw NotCompiled(plan.op.schema().name() + " is given indices that the segment computes");
    }
  }
}

// Indices that the segment copies together are looked at where they come from.
void Outline::check_numbers(const Plan& plan, const Bound& bound, const WholeNumbers& numbers) {
  for (const auto& [least, most] : numbers.intervals) {
    if (!is_within(bound, least, most)) throw NotCompiled(plan.op.schema().name() + " is given indices that the segment computes");
  }
  if (bound.kind != Bound::Kind::kOffsets && bound.kind != Bound::Kind::kClasses) throw NotCompiled(plan.op.schema().name() + " is given indices that the segment computes");
  for (const uint64_t input : numbers.inputs) checks_.push_back({&plan, bound, input, nullptr, 0});
}

// Storages that are never looked at as a whole are rows of elements.
void Outline::complete(Layouts& layouts) {
  for (auto& place : places_) {
    if (place.layout || !place.has_dtype) continue;
    const auto item = static_cast<int64_t>(c10::elementSize(place.dtype));
    if (place.bytes % item != 0) throw NotCompiled("a storage holds a part of an element");
    place.layout = layouts.intern({static_cast<uint8_t>(place.dtype), 0, {place.bytes / item}, {1}});
  }
}

int64_t Outline::made_bytes() const {
  return std::accumulate(places_.begin(), places_.end(), int64_t{0},
                         [](int64_t sum, const Place& place) { return sum + (place.is_made && !place.is_freed ? place.bytes : 0); });
}

std::vector<uint8_t> Outline::description(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans) const {
  wire::Writer out;
  out.varint(numbers_);
  out.varint(draws_.size());
  out.varint(places_.size());
  for (const auto& place : places_) {
    out.u8(static_cast<uint8_t>((place.is_input ? 1 : 0) | (place.is_output() ? 2 : 0) | (place.layout ? 4 : 0)));
    if (place.layout) wire::put_geometry(out, static_cast<uint8_t>(place.dtype), 0, place.layout->sizes, place.layout->strides);
  }
  out.varint(calls_);
  auto word = words_.begin();
  for (const wire::Step* step : path) {
    const auto end = word + static_cast<std::ptrdiff_t>(step->slots.size());
    if (!wire::is_allocation(step->key)) {
      const Plan& plan = *plans[wire::key_value(step->key)];
      out.string(plan.op.schema().name());
      out.string(plan.op.schema().overload_name());
      out.u8(0);  // the operator's number in a template
      out.raw(plan.encoded.data(), plan.encoded.size());
      for (auto one = word; one != end; ++one) {
        out.u8(static_cast<uint8_t>(one->kind));
        out.u64(one->value);
      }
    }
    word = end;
  }
  return out.bytes();
}

Outline::Misfit Outline::bind(const std::vector<wire::Step*>& path, Binding& binding) const {
  binding.ids.assign(places_.size(), 0);
  binding.numbers.resize(numbers_);
  binding.draws.resize(draws_.size());
  const auto bind_id = [&](uint64_t number, uint64_t id) {
    if (binding.ids[number] == 0) binding.ids[number] = id;
    return binding.ids[number] == id;
  };
  auto word = words_.begin();
  bool numbers_fit = true;
  for (size_t index = 0; index < path.size(); ++index) {
    const wire::Step& step = *path[index];
    if (index > 0) {
      if (step.freed.size() != freed_[index].size()) return Misfit::kOther;
      for (size_t one = 0; one < step.freed.size(); ++one) {
        if (!bind_id(freed_[index][one], step.freed[one].last)) return Misfit::kOther;
      }
    }
    for (const auto& slot : step.slots) {
      switch (word->kind) {
        case Kind::kUsed:
        case Kind::kMade:
          if (!bind_id(word->value, slot.last)) return Misfit::kOther;
          break;
        case Kind::kNumber:
          binding.numbers[word->value] = wire::bits_value(slot.last);
          break;
        case Kind::kConstant:
          if (slot.last != word->value && !word->is_bits) return Misfit::kOther;
          numbers_fit = numbers_fit && slot.last == word->value;
          break;
        case Kind::kDrawn:
          binding.draws[word->value] = {slot.last, (&slot)[1].last};  // its counter comes behind the seed
          break;
        case Kind::kIgnored:
          break;
      }
      ++word;
    }
  }
  auto sorted = binding.ids;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return Misfit::kOther;
  return numbers_fit ? Misfit::kNone : Misfit::kNumber;
}

void Outline::check(const Binding& binding, Storages& storages, const Device& device) const {
  for (const auto& check : checks_) {
    torch::jit::Stack stack(check.plan->arguments.size());
    const Layout& layout = check.layout ? *check.layout : *places_[check.place].layout;
    stack[check.bound.argument] = storages.at(binding.ids[check.place]).view(device, layout, check.offset);
    check_bound(*check.plan, check.bound, stack);
  }
}

}  // namespace forebay::worker
