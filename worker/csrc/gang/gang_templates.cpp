#include "gang/gang_templates.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

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

void GangTemplates::define_operator(const uint8_t* bytes, size_t count) { operators_.push_back({0, {bytes, bytes + count}}); }

GangTemplates::Operator GangTemplates::own_operator(const std::string& name) {
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

void GangTemplates::define_template(const wire::Template& source, c10::OperatorHandle op) {
  templates_.push_back(source);
  handles_.push_back(op);
  definitions_.push_back(encoded(source));
}

void GangTemplates::forget() {
  templates_.clear();
  handles_.clear();
  definitions_.clear();
  slice_numbers_.clear();
  own_numbers_.clear();
  own_.clear();
}

uint64_t GangTemplates::slice_of(uint64_t number, const std::vector<size_t>& items) {
  std::string key(reinterpret_cast<const char*>(&number), sizeof(number));
  key.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(size_t));
  const auto [known, fresh] = slice_numbers_.try_emplace(std::move(key), 0);
  if (fresh) {
    const auto& source = template_of(number);
    known->second = define_own(Selection(source, length_of_lists(source), items).definition(), operator_of(number));
  }
  return known->second;
}

uint64_t GangTemplates::define_own(const wire::Template& source, c10::OperatorHandle op) {
  auto definition = encoded(source);
  std::string key(reinterpret_cast<const char*>(&definition.op), sizeof(definition.op));
  key.append(definition.encoded.begin(), definition.encoded.end());
  const auto known = own_numbers_.find(key);
  if (known != own_numbers_.end()) return wire::kTemplatesMax + known->second;
  own_.push_back({source, op, std::move(definition), make_plan(source, op, device_, layouts_)});
  own_numbers_.emplace(std::move(key), own_.size() - 1);
  return wire::kTemplatesMax + own_.size() - 1;
}

size_t GangTemplates::length_of_items(uint64_t number) const {
  return is_itemwise(operator_of(number).schema().name()) ? length_of_lists(template_of(number)) : 0;
}

std::vector<std::vector<uint64_t>> GangTemplates::items_of(uint64_t number, const wire::Words& words) const {
  const auto& source = template_of(number);
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

GangTemplates::Part GangTemplates::part_of_items(uint64_t number, const wire::Words& words, const std::vector<size_t>& items) {
  const uint64_t definition = slice_of(number, items);
  const auto& source = template_of(number);
  return {definition, &own_plan(definition), Selection(source, length_of_lists(source), items).words(words)};
}

}  // namespace forebay::worker
