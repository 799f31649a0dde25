#include "tier2/specialization.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include <ATen/core/stack.h>

#include "call/bounds.h"
#include "call/ranges.h"

namespace forebay::worker {

namespace {

constexpr size_t kChangingNumbersMax = 4096;
constexpr size_t kPlacesMax = 16384;
constexpr size_t kWindowsMax = 1024;

enum class Gaps { kNone, kAny };

// Whether each element has a place of its own, with or without others between them.
bool is_apart(const Layout& layout, Gaps gaps) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    if (layout.sizes[dim] != 1) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end(), [&](size_t one, size_t other) { return layout.strides[one] < layout.strides[other]; });
  int64_t next = 1;
  for (const size_t dim : dims) {
    if (layout.strides[dim] < next || (gaps == Gaps::kNone && layout.strides[dim] != next)) return false;
    next = layout.strides[dim] * layout.sizes[dim];
  }
  return true;
}

bool covers(const Layout& layout, int64_t offset, int64_t bytes) {
  return offset == 0 && layout.numel * layout.item_bytes == bytes && (layout.numel == 0 || is_apart(layout, Gaps::kNone));
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

// Indices that a call is given.
struct Leading {
  Bound bound;
  size_t tensor;  // of the call's
  size_t item;    // of a list: its number and 1
};

// All that tier 1 holds against something, be it here or in a kernel: a library takes some from the end of what they lead into, and none raises.
std::vector<Leading> leading(const Plan& plan) {
  std::vector<Leading> found;
  for (const auto& bound : plan.bounds) {
    if (bound.kind == Bound::Kind::kZero) throw NotCompiled(plan.op.schema().name() + " is given a number that must be 0");
    std::vector<LayoutRef> before;
    for (size_t index = 0; index < bound.argument; ++index) flatten(plan.arguments[index], before);
    found.push_back({bound, before.size(), 0});
  }
  for (const auto& range : ranges_of(plan)) {
    if (std::any_of(plan.bounds.begin(), plan.bounds.end(), [&](const Bound& bound) { return bound.argument == range.argument; })) continue;
    const auto kind = range.least < 0 ? Bound::Kind::kEitherEnd : range.except ? Bound::Kind::kClasses : Bound::Kind::kOffsets;
    found.push_back({{range.argument, range.most + 1, range.except.value_or(0), kind}, range.tensor, range.item ? *range.item + 1 : 0});
  }
  // The host's kernel wants its targets between 0 and 1, too.
  if (base_name(plan) == "binary_cross_entropy" && plan.arguments[1].tag == wire::Tag::kTensor) found.push_back({{1, 2, 0, Bound::Kind::kOffsets}, 1, 0});
  return found;
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

// Whether all that it does is to fill a tensor with what it draws, which can be drawn before.
bool draws_values(const Plan& plan) {
  constexpr std::string_view kDistributions[] = {"bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "randperm", "uniform"};
  if (plan.mutated.size() != 1 || std::find(std::begin(kDistributions), std::end(kDistributions), base_name(plan)) == std::end(kDistributions)) return false;
  std::vector<LayoutRef> tensors;
  for (const auto& argument : plan.arguments) flatten(argument, tensors);
  const auto given = std::count_if(tensors.begin(), tensors.end(), [](const LayoutRef& layout) { return layout != nullptr; });
  return given == 1 && tensors[plan.mutated.front()]->span >= tensors[plan.mutated.front()]->numel;
}

// As a library takes it; nothing for a whole number that no binary64 is.
std::optional<double> number_of(const wire::Slot& slot) {
  constexpr int64_t kExactMost = int64_t{1} << 53;
  if (slot.kind == wire::Word::kBits) return wire::bits_value(slot.last);
  const int64_t whole = wire::zigzag_value(slot.last);
  return whole >= -kExactMost && whole <= kExactMost ? std::optional(static_cast<double>(whole)) : std::nullopt;
}

void refuse_kind(const Plan& plan, const wire::Step& step) {
  const auto& name = plan.op.schema().name();
  if (!plan.sparse.empty()) throw NotCompiled(name + " is given sparse tensors");
  if (!plan.breach.empty()) throw NotCompiled(name + " fails: " + plan.breach);
  if (plan.random && may_draw(plan, step) && !draws_mask(plan) && !draws_values(plan)) throw NotCompiled(name + " draws random numbers");
}

}  // namespace

Specialization::Specialization(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans, Storages& storages, Layouts& layouts,
                 std::vector<const Specialization*> alike, const WordPlaces& changing)
    : alike_(std::move(alike)), changing_(changing) {
  for (size_t index = 0; index < path.size(); ++index) {
    const wire::Step* step = path[index];
    freed_.emplace_back();
    for (const auto& slot : step->freed) {
      if (index == 0) break;  // that was before
      const auto known = numbers_of_ids_.find(slot.last);
      const uint64_t number = known != numbers_of_ids_.end() ? known->second : add_place(slot.last);
      places_[number].is_freed = true;
      freed_.back().push_back(number);
    }
    if (wire::is_allocation(step->key)) {
      const uint64_t number = add_place(step->slots.front().last);
      places_[number].is_made = true;
      places_[number].bytes = static_cast<int64_t>(wire::key_value(step->key));
      words_.push_back({Kind::kMade, false, number});
    } else {
      note_call(index, *step, *plans[wire::key_value(step->key)], storages);
      ++calls_;
    }
  }
  complete(layouts);
  numbers_of_ids_.clear();
  alike_.clear();
  changing_.clear();
}

uint64_t Specialization::add_place(uint64_t id) {
  if (places_.size() >= kPlacesMax) throw NotCompiled("it uses more than " + std::to_string(kPlacesMax) + " storages");
  places_.emplace_back();
  if (!numbers_of_ids_.emplace(id, places_.size() - 1).second) throw NotCompiled("a storage's id comes twice");
  return places_.size() - 1;
}

void Specialization::note_call(size_t number, const wire::Step& step, const Plan& plan, Storages& storages) {
  refuse_kind(plan, step);
  std::vector<LayoutRef> tensors;
  for (const auto& argument : plan.arguments) flatten(argument, tensors);
  std::vector<const OutputPlan*> made;
  flatten(plan.outputs, made);
  std::vector<Use> used(tensors.size());
  size_t tensor = 0, result = 0;
  const size_t drawn_from = step.slots.size() - (plan.random ? 2 : 0);
  first_word_ = words_.size();
  for (size_t index = 0; index < step.slots.size(); ++index) {
    const auto& slot = step.slots[index];
    if (index == drawn_from && draws_mask(plan)) {
      note_mask(number, step, plan, made);
    } else if (index == drawn_from && draws_values(plan)) {
      note_values(number, step, tensors[plan.mutated.front()], used[plan.mutated.front()].place);
    } else if (index >= drawn_from) {
      words_.push_back({Kind::kIgnored, false, 0});
    } else if (slot.kind == wire::Word::kStorage) {
      while (!tensors[tensor]) ++tensor;
      const bool writes = std::find(plan.mutated.begin(), plan.mutated.end(), tensor) != plan.mutated.end();
      used[tensor] = note_use(slot.last, step.slots[++index], tensors[tensor], writes, storages);
      ++tensor;
    } else if (slot.kind == wire::Word::kNew) {
      note_result(slot.last, *made[result++]);
    } else {
      note_number(slot);
    }
  }
  note_checks(plan, tensors, used);
}

// Whether the next word is one that changes, here, in one of those alike or in another session.
bool Specialization::changes(const wire::Slot& slot) const {
  const auto changes_in = [&](const Specialization* other) {
    const Kind kind = other->words_.at(words_.size()).kind;
    return kind == Kind::kNumber || kind == Kind::kWindow;
  };
  const bool did_change = changing_.count({calls_, words_.size() - first_word_}) > 0;
  return slot.varies || did_change || std::any_of(alike_.begin(), alike_.end(), changes_in);
}

void Specialization::note_number(const wire::Slot& slot) {
  const bool is_truth = slot.kind == wire::Word::kByte;
  if (!changes(slot)) return words_.push_back({Kind::kConstant, !is_truth, slot.last});
  if (is_truth) throw NotCompiled("a truth changes from time to time");
  if (numbers_ >= kChangingNumbersMax) throw NotCompiled("more than " + std::to_string(kChangingNumbersMax) + " numbers change");
  words_.push_back({Kind::kNumber, false, numbers_++});
}

void Specialization::note_mask(size_t index, const wire::Step& step, const Plan& plan, const std::vector<const OutputPlan*>& made) {
  constexpr size_t kProbability = 2;  // the word behind the tensor's
  const auto& probability = step.slots[kProbability];
  if (plan.arguments[1].tag != wire::Tag::kDouble || probability.varies || made.size() != 2) throw NotCompiled("a dropout whose probability changes");
  const double kept = 1 - wire::bits_value(probability.last);
  if (!(kept >= 0 && kept <= 1)) throw NotCompiled("a dropout whose probability is none");
  words_.push_back({Kind::kDrawn, false, draws_.size()});
  draws_.push_back({index, kept, made[1]->layout});
}

void Specialization::note_values(size_t index, const wire::Step& step, const LayoutRef& layout, uint64_t place) {
  const auto word = std::find_if(step.slots.begin(), step.slots.end(), [](const wire::Slot& slot) { return slot.kind == wire::Word::kStorage; });
  words_.push_back({Kind::kDrawn, false, draws_.size()});
  draws_.push_back({index, std::nullopt, layout, static_cast<size_t>(word - step.slots.begin()), places_[place].bytes});
}

Specialization::Use Specialization::note_use(uint64_t id, const wire::Slot& offset, const LayoutRef& layout, bool writes, Storages& storages) {
  const auto known = numbers_of_ids_.find(id);
  const uint64_t number = known != numbers_of_ids_.end() ? known->second : add_place(id);
  Place& place = places_[number];
  if (place.is_freed) throw NotCompiled("a storage is used after it was freed");
  if (known == numbers_of_ids_.end()) {
    const Entry& entry = storages.at(id);
    if (entry.cause() || entry.shortfall()) throw NotCompiled("it uses what was never made");
    place.is_given = true;
    place.bytes = entry.bytes();
  }
  if (layout->conj || layout->neg || c10::isComplexType(layout->dtype)) throw NotCompiled("complex tensors");
  if (place.has_dtype && place.dtype != layout->dtype) throw NotCompiled("a storage is looked at in two dtypes");
  place.has_dtype = true;
  place.dtype = layout->dtype;
  place.is_written = place.is_written || writes;
  Use use{number, static_cast<int64_t>(offset.last), std::nullopt};
  words_.push_back({Kind::kUsed, false, number});
  const bool may_move = place.is_given && is_apart(*layout, Gaps::kAny);
  if (offset.varies || (may_move && changes(offset))) {
    use.window = add_window(number, layout);
    words_.push_back({Kind::kWindow, false, *use.window});
    return use;
  }
  if (covers(*layout, use.offset, place.bytes) && !place.layout) place.layout = layout;
  place.is_input = place.is_given;
  fixed_.emplace_back(words_.size(), number);
  words_.push_back({Kind::kConstant, false, offset.last});
  return use;
}

size_t Specialization::add_window(uint64_t number, const LayoutRef& layout) {
  if (!places_[number].is_given) throw NotCompiled("it makes a storage, and looks at another part of it from time to time");
  if (!is_apart(*layout, Gaps::kAny)) throw NotCompiled("a tensor whose elements share their place lies elsewhere from time to time");
  if (windows_.size() >= kWindowsMax) throw NotCompiled("more than " + std::to_string(kWindowsMax) + " tensors lie elsewhere from time to time");
  places_[number].is_windowed = true;
  windows_.push_back({number, layout});
  return windows_.size() - 1;
}

void Specialization::note_result(uint64_t id, const OutputPlan& output) {
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

// Indices that are there before are looked at before; those that the segment computes, and all probabilities, the library looks at itself.
void Specialization::note_checks(const Plan& plan, const std::vector<LayoutRef>& tensors, const std::vector<Use>& used) {
  for (const auto& [bound, tensor, item] : leading(plan)) {
    const Place& place = places_[used[tensor].place];
    if (place.is_made || place.is_written || c10::isFloatingType(place.dtype)) {
      note_guard(plan, bound, item);
    } else {
      checks_.push_back({&plan, bound, used[tensor], tensors[tensor]});
    }
  }
}

void Specialization::note_guard(const Plan& plan, const Bound& bound, size_t item) {
  const bool from_either_end = bound.kind == Bound::Kind::kEitherEnd, has_other = bound.kind == Bound::Kind::kClasses;
  const bool is_range = from_either_end || has_other || bound.kind == Bound::Kind::kOffsets;
  if (!is_range || bound.end <= 0) throw NotCompiled(plan.op.schema().name() + " is given indices that the segment computes");
  guards_.push_back({calls_, bound.argument, item, from_either_end ? -bound.end : 0, bound.end - 1, has_other ? std::optional(bound.other) : std::nullopt});
}

// Storages that are never looked at as a whole are rows of elements. What nothing writes to may be looked at elsewhere another time, and so may
// what is written to and looked at nowhere else.
void Specialization::complete(Layouts& layouts) {
  for (const auto& [word, number] : fixed_) {
    const auto is_of_it = [number = number](const auto& other) { return other.second == number; };
    const Place& place = places_[number];
    words_[word].may_change = place.is_given && (!place.is_written || (!place.is_windowed && std::count_if(fixed_.begin(), fixed_.end(), is_of_it) == 1));
  }
  fixed_.clear();
  for (size_t number = 0; number < places_.size(); ++number) {
    Place& place = places_[number];
    if (place.is_windowed && place.is_written) settle_written(number);
    if (place.layout || !place.has_dtype) continue;
    const auto item = static_cast<int64_t>(c10::elementSize(place.dtype));
    if (place.bytes % item != 0) throw NotCompiled("a storage holds a part of an element");
    place.layout = layouts.intern({static_cast<uint8_t>(place.dtype), 0, {place.bytes / item}, {1}});
  }
}

// Its window takes the write.
void Specialization::settle_written(uint64_t number) {
  Place& place = places_[number];
  const auto is_its = [&](const Window& window) { return window.place == number; };
  const auto window = std::find_if(windows_.begin(), windows_.end(), is_its);
  if (place.is_input || std::find_if(window + 1, windows_.end(), is_its) != windows_.end()) {
    throw NotCompiled("it writes to a storage, and looks at another part of it from time to time");
  }
  window->is_output = !place.is_freed;
  place.is_written = false;
}

int64_t Specialization::made_bytes() const {
  return std::accumulate(places_.begin(), places_.end(), int64_t{0},
                         [](int64_t sum, const Place& place) { return sum + (place.is_made && !place.is_freed ? place.bytes : 0); });
}

void Specialization::put(const Guard& guard, wire::Writer& out) {
  out.varint(guard.argument);
  out.varint(guard.item);
  out.zigzag(guard.least);
  out.zigzag(guard.most);
  out.u8(guard.except.has_value());
  out.zigzag(guard.except.value_or(0));
}

std::vector<uint8_t> Specialization::description(const std::vector<wire::Step*>& path, const std::vector<std::unique_ptr<Plan>>& plans) const {
  wire::Writer out;
  out.varint(numbers_);
  out.varint(draws_.size());
  out.varint(windows_.size());
  for (const auto& window : windows_) {
    out.u8(window.is_output);
    wire::put_geometry(out, static_cast<uint8_t>(window.layout->dtype), 0, window.layout->sizes, window.layout->strides);
  }
  out.varint(places_.size());
  for (const auto& place : places_) {
    out.u8(static_cast<uint8_t>((place.is_input ? 1 : 0) | (place.is_output() ? 2 : 0) | (place.layout ? 4 : 0)));
    if (place.layout) wire::put_geometry(out, static_cast<uint8_t>(place.dtype), 0, place.layout->sizes, place.layout->strides);
  }
  out.varint(calls_);
  auto word = words_.begin();
  auto guard = guards_.begin();
  uint64_t call = 0;
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
      const auto last = std::find_if(guard, guards_.end(), [&](const Guard& one) { return one.call != call; });
      out.varint(static_cast<uint64_t>(last - guard));
      for (; guard != last; ++guard) put(*guard, out);
      ++call;
    }
    word = end;
  }
  return out.bytes();
}

Specialization::GuardFailure Specialization::bind(const std::vector<wire::Step*>& path, Binding& binding) const {
  binding.ids.assign(places_.size(), 0);
  binding.numbers.resize(numbers_);
  binding.draws.resize(draws_.size());
  binding.offsets.resize(windows_.size());
  const auto bind_id = [&](uint64_t number, uint64_t id) {
    if (binding.ids[number] == 0) binding.ids[number] = id;
    return binding.ids[number] == id;
  };
  auto word = words_.begin();
  bool numbers_fit = true;
  for (size_t index = 0; index < path.size(); ++index) {
    const wire::Step& step = *path[index];
    if (index > 0) {
      if (step.freed.size() != freed_[index].size()) return GuardFailure::kOther;
      for (size_t one = 0; one < step.freed.size(); ++one) {
        if (!bind_id(freed_[index][one], step.freed[one].last)) return GuardFailure::kOther;
      }
    }
    for (const auto& slot : step.slots) {
      switch (word->kind) {
        case Kind::kUsed:
        case Kind::kMade:
          if (!bind_id(word->value, slot.last)) return GuardFailure::kOther;
          break;
        case Kind::kNumber:
          if (const auto number = number_of(slot)) binding.numbers[word->value] = *number;
          else return GuardFailure::kOther;
          break;
        case Kind::kConstant:
          if (slot.last != word->value && !word->may_change) return GuardFailure::kOther;
          numbers_fit = numbers_fit && slot.last == word->value;
          break;
        case Kind::kDrawn:
          binding.draws[word->value] = {slot.last, (&slot)[1].last};  // its counter comes behind the seed
          break;
        case Kind::kWindow:
          binding.offsets[word->value] = static_cast<int64_t>(slot.last);
          break;
        case Kind::kIgnored:
          break;
      }
      ++word;
    }
  }
  for (size_t window = 0; window < windows_.size(); ++window) {
    const auto& [place, layout, is_output] = windows_[window];
    const int64_t room = places_[place].bytes / layout->item_bytes - layout->span;  // below 0 where no offset would do
    if (binding.offsets[window] < 0 || binding.offsets[window] > room) return GuardFailure::kOther;
  }
  auto sorted = binding.ids;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return GuardFailure::kOther;
  return numbers_fit ? GuardFailure::kNone : GuardFailure::kNumber;
}

void Specialization::check(const Binding& binding, Storages& storages, const Device& device) const {
  for (const auto& check : checks_) {
    torch::jit::Stack stack(check.plan->arguments.size());
    const int64_t offset = check.use.window ? binding.offsets[*check.use.window] : check.use.offset;
    stack[check.bound.argument] = storages.at(binding.ids[check.use.place]).view(device, *check.layout, offset);
    check_bound(*check.plan, check.bound, stack);
  }
}

}  // namespace forebay::worker
