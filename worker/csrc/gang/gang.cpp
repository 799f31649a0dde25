#include "gang/gang.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include <forebay/out_of_memory.h>

#include "call/operators.h"
#include "call/planner.h"

namespace forebay::worker {

size_t words_of(const wire::Argument& argument) {
  switch (argument.tag) {
    case wire::Tag::kTensor:
    case wire::Tag::kScalarComplex:
      return 2;
    case wire::Tag::kScalarTensor:
      return c10::isComplexType(static_cast<c10::ScalarType>(argument.dtype)) ? 2 : 1;
    case wire::Tag::kDouble:
    case wire::Tag::kScalarDouble:
    case wire::Tag::kScalarInt:
    case wire::Tag::kScalarBool:
      return 1;
    case wire::Tag::kDoubleList:
      return argument.count;
    case wire::Tag::kTensorList:
    case wire::Tag::kScalarList:
    case wire::Tag::kSparse:
      return std::accumulate(argument.items.begin(), argument.items.end(), size_t{0}, [](size_t sum, const auto& item) { return sum + words_of(item); });
    default:
      return 0;
  }
}

size_t word_of(const wire::Template& call, size_t argument) {
  const auto end = call.arguments.begin() + static_cast<std::ptrdiff_t>(argument);
  return std::accumulate(call.arguments.begin(), end, size_t{0}, [](size_t sum, const auto& one) { return sum + words_of(one); });
}

static size_t words_of(const wire::Output& output) {
  if (output.tag == wire::OutputTag::kNew) return 1;
  return std::accumulate(output.items.begin(), output.items.end(), size_t{0}, [](size_t sum, const auto& item) { return sum + words_of(item); });
}

namespace {

constexpr int kLevels = 4;  // of each device's memory

// Operators whose result for an item of their lists depends on the same items of the other lists alone, by the beginning of their names.
constexpr std::array<std::string_view, 3> kItemwise{"aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_"};

bool is_itemwise(const std::string& name) {
  return std::any_of(kItemwise.begin(), kItemwise.end(), [&](std::string_view prefix) { return name.rfind(prefix, 0) == 0; });
}

bool is_list(wire::Tag tag) { return tag == wire::Tag::kTensorList || tag == wire::Tag::kScalarList; }

// The length of all lists of an operator that takes their items one by one; 0 where it is none.
size_t length_of_lists(const wire::Template& call) {
  size_t length = 0;
  for (const auto& argument : call.arguments) {
    if (argument.tag == wire::Tag::kTensorList) length = std::max(length, argument.items.size());
  }
  const auto fits = [&](size_t items) { return items == length || items == 0; };
  for (const auto& argument : call.arguments) {
    if (is_list(argument.tag) && !fits(argument.items.size())) return 0;
    if (argument.tag == wire::Tag::kDoubleList && !fits(argument.count)) return 0;
  }
  for (const auto& output : call.outputs) {
    if (output.tag != wire::OutputTag::kNone && (output.tag != wire::OutputTag::kList || !fits(output.items.size()))) return 0;
  }
  return length;
}

// Some items of each list of a template, and of the words of a call of it.
class Selection {
 public:
  Selection(const wire::Template& source, size_t length, std::vector<size_t> items) : source_(source), length_(length), items_(std::move(items)) {}

  wire::Template definition() const {
    wire::Template result = source_;
    for (auto& argument : result.arguments) {
      if (is_list(argument.tag)) select(argument.items);
      if (argument.tag == wire::Tag::kDoubleList && argument.count == length_) argument.count = items_.size();
    }
    for (auto& output : result.outputs) select(output.items);
    return result;
  }

  wire::Words words(const wire::Words& all) const {
    wire::Words result;
    auto word = all.begin();
    for (const auto& argument : source_.arguments) {
      if (argument.tag == wire::Tag::kDoubleList && argument.count == length_) {
        for (const size_t item : items_) result.push_back(word[static_cast<std::ptrdiff_t>(item)]);
        word += static_cast<std::ptrdiff_t>(length_);
      } else if (is_list(argument.tag)) {
        take(argument.items, word, result);
      } else {
        take_all(words_of(argument), word, result);
      }
    }
    for (const auto& output : source_.outputs) take(output.items, word, result);
    result.insert(result.end(), word, all.end());  // seed and counter
    return result;
  }

 private:
  using Word = wire::Words::const_iterator;

  template <class Item>
  void select(std::vector<Item>& list) const {
    if (list.size() != length_) return;
    std::vector<Item> selected;
    for (const size_t item : items_) selected.push_back(list[item]);
    list = std::move(selected);
  }

  static void take_all(size_t count, Word& word, wire::Words& result) {
    result.insert(result.end(), word, word + static_cast<std::ptrdiff_t>(count));
    word += static_cast<std::ptrdiff_t>(count);
  }

  template <class Item>
  void take(const std::vector<Item>& list, Word& word, wire::Words& result) const {
    auto next = items_.begin();
    for (size_t item = 0; item < list.size(); ++item) {
      const size_t count = words_of(list[item]);
      if (next != items_.end() && *next == item) {
        ++next;
        take_all(count, word, result);
      } else {
        word += static_cast<std::ptrdiff_t>(count);
      }
    }
  }

  const wire::Template& source_;
  size_t length_;
  std::vector<size_t> items_;  // in order
};

template <class Use>
void for_each_storage(const Plan& plan, const wire::Words& words, wire::Word kind, const Use& use) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == kind) use(words[index]);
  }
}

}  // namespace

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

std::vector<uint64_t> Gang::storages_of(const Plan& plan, const wire::Words& words) {
  std::vector<uint64_t> ids;
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) { ids.push_back(id); });
  return each_once(std::move(ids));
}

std::vector<bool> Gang::writes_of(const Plan& plan) {
  std::vector<bool> written;
  size_t tensor = 0;
  collect_written(plan, plan.arguments, tensor, written);
  return written;
}

std::vector<uint64_t> Gang::written_of(const Plan& plan, const wire::Words& words) {
  if (plan.mutated.empty()) return {};
  const std::vector<bool> written = writes_of(plan);
  std::vector<uint64_t> ids;
  auto is_written = written.begin();
  for_each_storage(plan, words, wire::Word::kStorage, [&](uint64_t id) {
    if (*is_written++) ids.push_back(id);
  });
  return each_once(std::move(ids));
}

bool Gang::is_repeatable(const Plan& plan, const wire::Words& words) {
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

namespace {

Definition encoded(const wire::Template& source) {
  wire::Writer out;
  wire::put_template(out, source);
  wire::Reader in(out.bytes().data(), out.size());
  Definition definition;
  definition.op = in.varint();
  definition.encoded.assign(in.position(), in.position() + in.left());
  return definition;
}

}  // namespace

int64_t Gang::part_of(int64_t limit_bytes) const {
  const auto count = static_cast<int64_t>(size());
  return limit_bytes / count + (limit_bytes % count != 0);
}

// Definitions.

void Gang::define_operator(const uint8_t* bytes, size_t count) { operators_.push_back({0, {bytes, bytes + count}}); }

Gang::Operator Gang::own_operator(const std::string& name) {
  const auto known = own_operator_numbers_.find(name);
  if (known != own_operator_numbers_.end()) return known->second;
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string base = "aten::" + name.substr(0, dot), overload = name.substr(std::min(dot + 1, name.size()));
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
  wire::Writer out;
  out.string(base);
  out.string(overload);
  out.u64(schema_hash(toString(handle.schema())));
  own_operators_.push_back({0, {out.bytes().begin(), out.bytes().end()}});
  return own_operator_numbers_.emplace(name, Operator{wire::kOperatorsMax + own_operators_.size() - 1, handle}).first->second;
}

void Gang::define_template(const wire::Template& source, c10::OperatorHandle op) {
  templates_.push_back(source);
  handles_.push_back(op);
  definitions_.push_back(encoded(source));
}

void Gang::settings(uint64_t bits) {
  for (const auto& other : others_) other->settings(bits);
}

void Gang::limit(int64_t bytes) {
  for (const auto& other : others_) other->limit(bytes);
}

void Gang::forget() {
  for (const auto& other : others_) other->forget();
  templates_.clear();
  handles_.clear();
  definitions_.clear();
  slice_numbers_.clear();
  own_numbers_.clear();
  slices_.clear();
}

Gang::Slice& Gang::slice_of(uint64_t number, const std::vector<size_t>& items) {
  std::string key(reinterpret_cast<const char*>(&number), sizeof(number));
  key.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(size_t));
  const auto [known, fresh] = slice_numbers_.try_emplace(std::move(key), 0);
  if (fresh) {
    const auto& source = templates_[number];
    const auto part = Selection(source, length_of_lists(source), items).definition();
    known->second = define_own(part, handles_[number]) - wire::kTemplatesMax;
  }
  return slices_[known->second];
}

uint64_t Gang::define_own(const wire::Template& source, c10::OperatorHandle op) {
  auto definition = encoded(source);
  std::string key(reinterpret_cast<const char*>(&definition.op), sizeof(definition.op));
  key.append(definition.encoded.begin(), definition.encoded.end());
  const auto known = own_numbers_.find(key);
  if (known != own_numbers_.end()) return wire::kTemplatesMax + known->second;
  slices_.push_back({std::move(definition), make_plan(source, op, device_, layouts_)});
  own_numbers_.emplace(std::move(key), slices_.size() - 1);
  return wire::kTemplatesMax + slices_.size() - 1;
}

// What is carried out where.

size_t Gang::length_of_items(uint64_t number) const {
  return is_itemwise(handles_[number].schema().name()) ? length_of_lists(templates_[number]) : 0;
}

std::vector<std::vector<uint64_t>> Gang::items_of(uint64_t number, const wire::Words& words) const {
  const auto& source = templates_[number];
  std::vector<std::vector<uint64_t>> items(length_of_lists(source));
  auto word = words.begin();
  for (const auto& argument : source.arguments) {
    if (argument.tag != wire::Tag::kTensorList || argument.items.size() != items.size()) {
      word += static_cast<std::ptrdiff_t>(words_of(argument));
      continue;
    }
    for (size_t item = 0; item < items.size(); ++item) {
      if (argument.items[item].tag == wire::Tag::kTensor) items[item].push_back(*word);
      word += static_cast<std::ptrdiff_t>(words_of(argument.items[item]));
    }
  }
  return items;
}

Gang::Part Gang::part_of_items(uint64_t number, const wire::Words& words, const std::vector<size_t>& items) {
  Slice& slice = slice_of(number, items);
  const auto index = static_cast<uint64_t>(&slice - slices_.data());
  const auto& source = templates_[number];
  return {wire::kTemplatesMax + index, slice.plan.get(), Selection(source, length_of_lists(source), items).words(words)};
}

std::vector<Gang::Part> Gang::parts_of(uint64_t number, const wire::Words& words) {
  if (length_of_items(number) == 0) return {};
  std::vector<std::vector<int64_t>> bytes;  // of each item at each device
  for (const auto& ids : items_of(number, words)) bytes.push_back(load_of(ids, 0).there);
  const auto lists = divided(bytes);
  if (lists.size() < 2) return {};
  std::vector<Part> parts;
  for (const auto& list : lists) parts.push_back(part_of_items(number, words, list));
  return parts;
}

// The items of lists, put together by where most bytes of each lie; no more together than a device has room for at any time.
// `bytes`: of each item at each device.
std::vector<std::vector<size_t>> Gang::divided(const std::vector<std::vector<int64_t>>& bytes) const {
  const int64_t most = part_of(storages_.limit_bytes()) / kLevels;
  std::vector<std::vector<size_t>> lists;
  for (size_t place = 0; place < size(); ++place) {
    int64_t together = most + 1;  // a list begins
    for (size_t item = 0; item < bytes.size(); ++item) {
      const auto& there = bytes[item];
      if (std::max_element(there.begin(), there.end()) - there.begin() != static_cast<std::ptrdiff_t>(place)) continue;
      const int64_t size = std::accumulate(there.begin(), there.end(), int64_t{0});
      if (together + size > most) {
        lists.emplace_back();
        together = 0;
      }
      lists.back().push_back(item);
      together += size;
    }
  }
  return lists;
}

int64_t Gang::used(int place) const {
  if (place > 0) return others_[static_cast<size_t>(place) - 1]->used_bytes();
  return std::accumulate(others_.begin(), others_.end(), storages_.used_bytes() + copied_bytes_ - hosted_bytes_,
                         [](int64_t left, const auto& other) { return left - other->used_bytes(); });
}

bool Gang::all_have_room(int64_t bytes) const {
  for (int place = 0; place < static_cast<int>(size()); ++place) {
    if (bytes > room(place)) return false;
  }
  return true;
}

void Gang::demand_room(int64_t bytes) const {
  if (all_have_room(bytes)) return;
  const int64_t limit = storages_.limit_bytes();
  throw CommandError(wire::FailureCode::kOutOfMemory, out_of_memory(bytes, storages_.used_bytes(), limit) + ". " + fullest());
}

int Gang::roomiest() const {
  int best = 0;
  for (int place = 1; place < static_cast<int>(size()); ++place) {
    if (room(place) > room(best)) best = place;
  }
  return best;
}

// `used`: bytes at each device.
int Gang::home_for(int64_t bytes, const std::vector<int64_t>& used) {
  const int count = static_cast<int>(size());
  if (homes_ == Homes::kScatter) return turn_++ % count;
  const int64_t part = part_of(storages_.limit_bytes());
  for (int level = 1; level <= kLevels; ++level) {
    for (int place = 0; place < count; ++place) {
      if (used[static_cast<size_t>(place)] <= part / kLevels * level - bytes) return place;
    }
  }
  return static_cast<int>(std::min_element(used.begin(), used.end()) - used.begin());
}

std::vector<int64_t> Gang::used() const {
  std::vector<int64_t> bytes;
  for (int place = 0; place < static_cast<int>(size()); ++place) bytes.push_back(used(place));
  return bytes;
}

Gang::Load Gang::load_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const {
  Load load{std::vector<int64_t>(size(), 0), 0, fresh_bytes, scratch_of(ids, fresh_bytes)};
  for (const uint64_t id : ids) {
    const Entry& entry = storages_.at(id);
    if (!entry.holds_anything()) continue;
    load.bytes += entry.bytes();
    if (entry.home() != kOnHost) load.there[static_cast<size_t>(entry.home())] += entry.bytes();
  }
  return load;
}

int Gang::best_place(const Load& load) {
  const auto most = std::max_element(load.there.begin(), load.there.end());
  if (homes_ == Homes::kScatter || *most == 0) return home_for(load.fresh_bytes, used());
  return static_cast<int>(most - load.there.begin());
}

std::optional<int> Gang::place_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const Load load = load_of(ids, fresh_bytes);
  const int best = best_place(load);
  if (load.needed(best) <= spare_room(best, load.scratch_bytes)) return best;
  std::optional<int> next;
  for (int place = 0; place < static_cast<int>(size()); ++place) {
    if (load.needed(place) <= spare_room(place, load.scratch_bytes) && (!next || load.needed(place) < load.needed(*next))) next = place;
  }
  return next;
}

int Gang::clear_place(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const int best = best_place(load_of(ids, fresh_bytes));
  clear(best, ids, fresh_bytes);
  return best;
}

void Gang::clear(int place, const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  const Load load = load_of(ids, fresh_bytes);
  make_room(place, load.needed(place), ids, load.scratch_bytes);
}

int64_t Gang::scratch_of(const std::vector<uint64_t>& ids, int64_t fresh_bytes) const {
  int64_t largest = 0;
  for (const uint64_t id : ids) largest = std::max(largest, storages_.at(id).bytes());
  return std::min(fresh_bytes + largest, part_of(storages_.limit_bytes()) / 3);
}

bool Gang::is_gathered(const std::vector<uint64_t>& ids, int place) const {
  return std::all_of(ids.begin(), ids.end(), [&](uint64_t id) {
    const Entry& entry = storages_.at(id);
    return !entry.holds_anything() || entry.home() == place;
  });
}

// Calls on other devices.

void Gang::send(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence, const Plan* of) {
  Rank& other = rank(place);
  const Definition& source = definition < wire::kTemplatesMax ? definitions_[definition] : slices_[definition - wire::kTemplatesMax].definition;
  sent_.push_back({place, other.calls(), sequence, &(of == nullptr ? plan : *of).op.schema().name(), {}});
  other.call(definition, source, source.op, definition_of(source.op), plan.words, words);
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) { sent_.back().fresh.push_back(id); });
}

void Gang::call(int place, uint64_t definition, const Plan& plan, const wire::Words& words, uint64_t sequence) {
  send(place, definition, plan, words, sequence);
  for_each_storage(plan, words, wire::Word::kNew, [&](uint64_t id) {
    Entry& entry = storages_.at(id);
    entry.live_elsewhere(std::make_unique<RankMemory>(rank(place), id, entry.bytes(), /*made=*/true));
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
