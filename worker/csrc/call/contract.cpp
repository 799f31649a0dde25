#include "call/contract.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace forebay::worker {

namespace {

using wire::Tag;

constexpr int64_t kLengthMax = int64_t{1} << 60;

struct Contract {
  std::string_view name;   // after the namespace, of all overloads; "… sparse" where they are given sparse tensors
  std::string_view terms;  // with spaces between
};

constexpr Contract kContracts[] = {
#include "call/contracts.inc"
};

struct Term {
  std::string_view argument;
  bool each = false;  // tensor of a list
  char relation = '=';
  std::string_view what;
  bool rows = false;   // the last dimension's elements are neighbours
  bool dense = false;  // all elements lie together
  bool filled = false;  // there are elements
  bool given = false;   // the argument is not left out
  bool absent = false;  // the argument is left out
  bool or_none = false;  // or there are no elements, and nothing else matters
  std::string_view flag;
  bool flag_set = true;
  std::string_view flag_text;  // of a flag that is a text or a number: what it must be
};

Term term_of(std::string_view text) {
  Term term;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    term.flag = text.substr(colon + 1);
    text = text.substr(0, colon);
    if (term.flag.front() == '!') {
      term.flag_set = false;
      term.flag.remove_prefix(1);
    }
    if (const size_t is = term.flag.find('='); is != std::string_view::npos) {
      term.flag_text = term.flag.substr(is + 1);
      term.flag = term.flag.substr(0, is);
    }
  }
  const size_t relation = text.find_first_of("=~<>#%^{}&|;@$'`?,()");
  if (std::string_view("=~^{").find(text[relation]) != std::string_view::npos) {
    for (; text.find_last_of("/!+0^-") == text.size() - 1; text.remove_suffix(1)) {
      term.rows |= text.back() == '/';
      term.dense |= text.back() == '!';
      term.filled |= text.back() == '+';
      term.given |= text.back() == '^';
      term.absent |= text.back() == '-';
      term.or_none |= text.back() == '0';
    }
  }
  term.argument = text.substr(0, relation);
  term.relation = text[relation];
  term.what = text.substr(relation + 1);
  if (term.argument.ends_with("[]")) {
    term.each = true;
    term.argument.remove_suffix(2);
  }
  return term;
}

std::vector<Term> terms_of(const Plan& plan) {
  const auto name = std::string(wire::local_name(plan.op.schema().name())) + (plan.sparse.empty() ? "" : " sparse");
  std::vector<Term> terms;
  for (const auto& contract : kContracts) {
    if (contract.name != name) continue;
    for (std::string_view rest = contract.terms; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      terms.push_back(term_of(rest.substr(0, space)));
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
  }
  return terms;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

using Sizes = std::vector<int64_t>;

// What the letters, and *, stand for.
struct Names {
  std::map<char, int64_t> sizes;
  std::optional<Sizes> rest;

  bool bind(char name, int64_t size) {
    if (name == '.') return true;
    if (name == '1') return size == 1;
    if (name >= 'A' && name <= 'Z') return size > 0 && bind(static_cast<char>(name - 'A' + 'a'), size);
    return sizes.emplace(name, size).first->second == size;
  }
};

// Dimensions against a pattern: those before * or ? from the front, those behind it from the back.
bool matches(const Sizes& sizes, std::string_view pattern, Names& names) {
  const size_t wild = pattern.find_first_of("*?");
  const std::string_view front = pattern.substr(0, wild), back = wild == std::string_view::npos ? "" : pattern.substr(wild + 1);
  const size_t fixed = front.size() + back.size();
  if (sizes.size() < fixed || (wild == std::string_view::npos && sizes.size() != fixed)) return false;
  for (size_t dim = 0; dim < front.size(); ++dim) {
    if (!names.bind(front[dim], sizes[dim])) return false;
  }
  for (size_t dim = 0; dim < back.size(); ++dim) {
    if (!names.bind(back[dim], sizes[sizes.size() - back.size() + dim])) return false;
  }
  if (wild == std::string_view::npos || pattern[wild] == '?') return true;
  Sizes rest(sizes.begin() + static_cast<std::ptrdiff_t>(front.size()), sizes.end() - static_cast<std::ptrdiff_t>(back.size()));
  if (!names.rest) names.rest = std::move(rest);
  else return *names.rest == rest;
  return true;
}

// Whether a tensor of these dimensions broadcasts to those that the pattern stands for: * first, if it is there, then letters.
bool broadcasts(const Sizes& sizes, std::string_view pattern, Names& names) {
  const size_t rest = pattern.front() == '*' && names.rest ? names.rest->size() : 0;
  if (pattern.front() == '*') pattern.remove_prefix(1);
  if (sizes.size() > rest + pattern.size()) return false;
  const size_t missing = rest + pattern.size() - sizes.size();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const size_t place = missing + dim;
    if (sizes[dim] == 1) continue;
    if (place < rest ? (*names.rest)[place] != sizes[dim] : !names.bind(pattern[place - rest], sizes[dim])) return false;
  }
  return true;
}

// A number that a call binds has no dimensions.
const Layout* layout_of(const ArgumentPlan& argument) {
  static const Layout number = [] {
    Layout layout;
    layout.span = layout.numel = 1;
    return layout;
  }();
  if (argument.tag == Tag::kScalarTensor) return &number;
  return argument.tag == Tag::kTensor || argument.tag == Tag::kSparse ? argument.layout.get() : nullptr;
}

class Check {
 public:
  explicit Check(const Plan& plan) : plan_(plan), schema_(plan.op.schema()) {}

  std::string run() {
    for (const Term& term : terms_of(plan_)) {
      if (!has(term.argument) && !term.given) continue;
      if (!term.flag.empty() && !flag_holds(term)) continue;
      if (!has(term.argument)) return std::string(term.argument) + " is missing";
      std::string breach = term.each ? each(term) : one(term);
      if (!breach.empty()) return breach;
    }
    return outputs();
  }

  // One overload may lack what another one has.
  bool has(std::string_view name) const {
    return std::any_of(schema_.arguments().begin(), schema_.arguments().end(), [&](const auto& argument) { return argument.name() == name; });
  }

  size_t index_of(std::string_view name) const {
    for (size_t index = 0; index < schema_.arguments().size(); ++index) {
      if (schema_.arguments()[index].name() == name) return index;
    }
    throw std::logic_error("the contract of " + schema_.name() + " names an argument " + std::string(name) + ", which it does not have");
  }

  // Then no copy can stand in for it.
  bool is_written(std::string_view name) const {
    const auto* alias = schema_.arguments()[index_of(name)].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  const ArgumentPlan& argument(std::string_view name) const { return plan_.arguments[index_of(name)]; }

  bool flag_holds(const Term& term) const {
    const auto& value = argument(term.flag).prototype;
    if (term.flag_text.empty()) return value.toBool() == term.flag_set;
    return (value.isInt() ? std::to_string(value.toInt()) : value.toStringRef()) == term.flag_text;
  }

  // What a term says of a tensor's whole numbers; nothing where it depends on an argument that is not given.
  std::optional<Bound> bound(const Term& term, size_t index) const {
    std::string_view end = term.what;
    Bound::Kind kind = Bound::Kind::kOffsets;
    if (end.front() == '1' || end.front() == '-') {
      kind = end.front() == '1' ? Bound::Kind::kPivots : Bound::Kind::kBlocks;
      end.remove_prefix(1);
    }
    if (const size_t except = end.find('\\'); except != std::string_view::npos) {
      const int64_t size = size_of(end.front()), other = argument(end.substr(except + 1)).prototype.toInt();
      return size < 0 ? std::nullopt : std::optional(Bound{index, size, other, Bound::Kind::kClasses});
    }
    if (end.front() == '<') return Bound{index, size_of(end[1]) + 1, size_of(end[2]), Bound::Kind::kBags};
    if (end.front() == '/') {
      kind = Bound::Kind::kAscending;
      end.remove_prefix(1);
    }
    const bool includes_end = end.back() == '+' || kind == Bound::Kind::kPivots || kind == Bound::Kind::kBlocks;
    if (end.back() == '+') end.remove_suffix(1);
    int64_t size = 1;
    if (end.size() == 1 || end[1] == '*') {
      for (const char letter : end) size *= letter == '*' ? 1 : size_of(letter);
    } else {
      size = argument(end).prototype.toInt();
    }
    return size < 0 ? std::nullopt : std::optional(Bound{index, size + includes_end, 0, kind});
  }

  // The dimensions of the other tensor before the operator's dimension "axis"; nothing where there is no such dimension.
  static std::optional<Sizes> before_axis(const Sizes& sizes, int64_t axis) {
    const auto rank = static_cast<int64_t>(sizes.size());
    if (axis < -rank || axis >= rank) return std::nullopt;
    return Sizes(sizes.begin(), sizes.begin() + (axis < 0 ? axis + rank : axis));
  }

  // -1 where nothing that was given says it.
  int64_t size_of(char letter) const {
    const auto size = names_.sizes.find(letter);
    return size == names_.sizes.end() ? -1 : size->second;
  }

  // Whether a kernel that goes by neighbours would leave the tensor.
  static bool lies_apart(const Term& term, const Layout& layout) {
    if (layout.numel == 0) return false;
    const bool rows_apart = !layout.sizes.empty() && layout.sizes.back() != 1 && layout.strides.back() != 1;
    return (term.rows && rows_apart) || (term.dense && layout.span != layout.numel);
  }

  // The longest sequence that "x)n" allows; of "x)y" the longest one of labels.
  int64_t longest(const Term& term) const {
    if (term.what.size() == 1) return size_of(term.what.front());
    const Layout* labels = layout_of(argument(term.what));
    const int64_t states = std::max<int64_t>(size_of('l') - 1, 0) / 2;  // a label and a blank each, and one blank more
    return size_of('l') < 0 ? std::numeric_limits<int64_t>::max() : labels->sizes.size() == 2 ? std::min(states, labels->sizes[1]) : states;
  }

  // How long all of them may be together.
  int64_t all_together(const Term& term) const {
    const Layout* labels = term.what.size() == 1 ? nullptr : layout_of(argument(term.what));
    return labels == nullptr || labels->sizes.size() != 1 ? std::numeric_limits<int64_t>::max() : labels->sizes[0];
  }

  // Of the other tensor, along the operator's dimension "axis".
  int64_t size_along_axis(const Term& term) const {
    const Layout* layout = layout_of(argument(term.what));
    const auto before = layout == nullptr ? std::nullopt : before_axis(layout->sizes, argument("axis").prototype.toInt());
    return before ? layout->sizes[before->size()] : -1;
  }

 private:
  std::string one(const Term& term) {
    const ArgumentPlan& given = argument(term.argument);
    switch (term.relation) {
      case '<':
        return dimensions(term, given);
      case '#':
        return count(term, given);
      case '>':
        return above(term, given);
      case '^':
        return slices(term, given);
      case '{':
        return normalized(term, given);
      case '}':
        return windows(term, given);
      case '&':
        return half(term, given);
      case '|':
        return pivots(term, given);
      case ';':
        return multiple(term, given);
      case '@':
      case '$':
        return rows(term, given);
      case '\'':
        return segments(term, given);
      case '`':
        return alike(term, given);
      case '?':
        return pairs(term, given);
      case '(':
        return empty(term, given);
      case ')':
        return lengths(term, given);
      case '%':
        return given.tag == Tag::kInt ? within(term, given) : "";
      case ',':
        return "";  // a number may differ from call to call: check_bounds looks at it
      default:
        return tensor(term, term.argument, given, names_);
    }
  }

  std::string tensor(const Term& term, std::string_view called, const ArgumentPlan& given, Names& names) const {
    const Layout* layout = layout_of(given);
    if (layout != nullptr && term.absent) return std::string(called) + " must be left out";
    if (layout == nullptr && term.given) return std::string(called) + " is missing";
    if (layout == nullptr || (term.or_none && layout->numel == 0)) return "";
    const bool fits = term.relation == '=' ? matches(layout->sizes, term.what, names) : broadcasts(layout->sizes, term.what, names);
    const std::string subject = std::string(called) + " " + text_of(layout->sizes);
    if (!fits) return subject + " does not fit the other arguments";
    if (term.filled && layout->numel == 0) return subject + " has no elements";
    if (layout->numel == 0) return "";
    return (term.each || is_written(term.argument)) && lies_apart(term, *layout) ? subject + " must have its elements together; call contiguous() first" : "";
  }

  std::string each(const Term& term) {
    const ArgumentPlan& given = argument(term.argument);
    if (given.tag != Tag::kTensorList || given.items.empty()) return "";  // kernels say themselves which list may be empty
    if (!count_) count_ = given.items.size();
    if (*count_ != given.items.size()) {
      return std::string(term.argument) + " has " + std::to_string(given.items.size()) + " tensors, not " + std::to_string(*count_);
    }
    each_.resize(*count_);
    for (size_t index = 0; index < given.items.size(); ++index) {
      std::string breach = tensor(term, std::string(term.argument) + "[" + std::to_string(index) + "]", given.items[index], each_[index]);
      if (!breach.empty()) return breach;
    }
    return "";
  }

  static Sizes numbers(const ArgumentPlan& given) {
    if (given.tag == Tag::kInt) return {given.prototype.toInt()};
    if (given.tag != Tag::kIntList) return {};
    return given.prototype.toIntVector();
  }

  std::string dimensions(const Term& term, const ArgumentPlan& given) const {
    const bool from_zero = term.what.front() == '0';
    const Layout* layout = layout_of(argument(term.what.substr(from_zero)));
    if (layout == nullptr) return "";
    const auto rank = static_cast<int64_t>(std::max<size_t>(layout->sizes.size(), 1));
    std::vector<bool> named(static_cast<size_t>(rank));
    for (const int64_t dim : numbers(given)) {
      const int64_t wrapped = dim < 0 ? dim + rank : dim;
      const bool fits = dim >= (from_zero ? 0 : -rank) && dim < rank && !named[static_cast<size_t>(wrapped)];
      if (!fits) return std::string(term.argument) + " names dimension " + std::to_string(dim) + ", of " + std::to_string(rank) + ", or names it twice";
      named[static_cast<size_t>(wrapped)] = true;
    }
    return "";
  }

  std::string count(const Term& term, const ArgumentPlan& given) const {
    const std::string size = std::to_string(numbers(given).size());
    const bool fits = given.tag != Tag::kIntList || (size.size() == 1 && term.what.find(size) != std::string_view::npos);
    return fits ? "" : std::string(term.argument) + " has " + size + " numbers";
  }

  std::string multiple(const Term& term, const ArgumentPlan& given) const {
    const bool fits = given.prototype.toInt() % argument(term.what).prototype.toInt() == 0;
    return fits ? "" : std::string(term.argument) + " is no multiple of " + std::string(term.what);
  }

  static std::string above(const Term& term, const ArgumentPlan& given) {
    const int64_t least = term.what.front() - '0';
    for (const int64_t number : numbers(given)) {
      if (number <= least) return std::string(term.argument) + " is " + std::to_string(number);
    }
    return "";
  }

  std::string within(const Term& term, const ArgumentPlan& given) const {
    const char what = term.what.front();
    const int64_t number = given.prototype.toInt(), end = what >= '0' && what <= '9' ? what - '0' : size_of(what);
    return number >= 0 && number < end ? "" : std::string(term.argument) + " is " + std::to_string(number);
  }

  // One row of numbers for each place of the other tensor before the operator's dimension "axis".
  std::string rows(const Term& term, const ArgumentPlan& given) const {
    const Layout *own = layout_of(given), *whole = layout_of(argument(term.what));
    if (own == nullptr || whole == nullptr) return "";
    const auto before = before_axis(whole->sizes, argument("axis").prototype.toInt());
    const bool fits = before && !own->sizes.empty() && *before == Sizes(own->sizes.begin(), own->sizes.end() - 1);
    return fits ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // The dimensions of "data", but along "axis" as many as the other tensor tells segments.
  std::string segments(const Term& term, const ArgumentPlan& given) const {
    const bool fewer = term.what.front() == '-';
    const Layout *own = layout_of(given), *data = layout_of(argument("data")), *told = layout_of(argument(term.what.substr(fewer)));
    if (own == nullptr || data == nullptr || told == nullptr) return "";
    const auto before = before_axis(data->sizes, argument("axis").prototype.toInt());
    bool fits = before && !told->sizes.empty();
    if (fits) {
      Sizes sizes = data->sizes;
      sizes[before->size()] = told->sizes.back() - fewer;
      fits = own->sizes == sizes;
    }
    return fits ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // As many elements as the other tensor has slices along the operator's dimension.
  std::string slices(const Term& term, const ArgumentPlan& given) const {
    const Layout *own = layout_of(given), *whole = layout_of(argument(term.what));
    if (own == nullptr || whole == nullptr) return "";
    const auto rank = static_cast<int64_t>(whole->sizes.size());
    const int64_t dim = argument("dim").prototype.toInt();
    const bool fits = dim >= -rank && dim < rank && own->numel == whole->sizes[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
    return fits ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // As many elements as the other tensor has rows, of the operator's "normalized_shape" each.
  std::string normalized(const Term& term, const ArgumentPlan& given) const {
    const Layout *own = layout_of(given), *whole = layout_of(argument(term.what));
    const size_t behind = numbers(argument("normalized_shape")).size();
    if (own == nullptr || whole == nullptr || behind > whole->sizes.size()) return "";  // the kernel says so itself
    const auto before = wire::elements_of(Sizes(whole->sizes.begin(), whole->sizes.end() - static_cast<std::ptrdiff_t>(behind)));
    return own->numel == before ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // Windows of so many numbers each, along one dimension of what has such sizes.
  std::string windows(const Term& term, const ArgumentPlan& given) const {
    const Layout* own = layout_of(given);
    Sizes sizes = numbers(argument(term.what));
    const int64_t rank = static_cast<int64_t>(sizes.size()), dim = argument("dim").prototype.toInt();
    const int64_t size = argument("size").prototype.toInt(), step = argument("step").prototype.toInt();
    if (own == nullptr) return "";
    bool fits = size >= 0 && step > 0;
    if (rank > 0 && fits && dim >= -rank && dim < rank) {
      int64_t& along = sizes[static_cast<size_t>(dim < 0 ? dim + rank : dim)];
      fits = size <= along;
      along = (along - size) / step + 1;
    } else {
      fits = fits && rank == 0 && size <= 1;  // of a number
    }
    sizes.push_back(size);
    return fits && own->sizes == sizes ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // One number for each row or column of the other tensor's matrices, whichever are fewer.
  std::string pivots(const Term& term, const ArgumentPlan& given) const {
    const Layout *own = layout_of(given), *whole = layout_of(argument(term.what));
    if (own == nullptr || whole == nullptr) return "";
    const size_t rank = whole->sizes.size();
    const bool fits = rank >= 2 && !own->sizes.empty() && own->sizes.back() == std::min(whole->sizes[rank - 1], whole->sizes[rank - 2]);
    return fits ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // Elements of the type that the other tensor has, as which the kernel reads them.
  std::string alike(const Term& term, const ArgumentPlan& given) const {
    const ArgumentPlan& other = argument(term.what);
    if (given.tag != Tag::kTensor || other.tag != Tag::kTensor || given.layout->dtype == other.layout->dtype) return "";
    const std::string types = std::string(c10::toString(given.layout->dtype)) + " elements, and " + std::string(term.what) + " " +
                              c10::toString(other.layout->dtype);
    return std::string(term.argument) + " has " + types;
  }

  // One number for each pair of the other tensor's rows.
  std::string pairs(const Term& term, const ArgumentPlan& given) const {
    const Layout *own = layout_of(given), *whole = layout_of(argument(term.what));
    if (own == nullptr || whole == nullptr || whole->sizes.empty()) return "";
    const int64_t rows = whole->sizes.front();
    return own->numel == rows * (rows - 1) / 2 ? "" : std::string(term.argument) + " " + text_of(own->sizes) + " does not fit the other arguments";
  }

  // No elements where the other tensor has none, or with - one at most.
  std::string empty(const Term& term, const ArgumentPlan& given) const {
    const bool or_one = term.what.front() == '-';
    const std::string_view name = term.what.substr(or_one);
    const Layout *own = layout_of(given), *other = layout_of(argument(name));
    if (own == nullptr || other == nullptr || other->numel > or_one || own->numel == 0) return "";
    return std::string(term.argument) + " " + text_of(own->sizes) + " has elements, and " + std::string(name) + (other->numel == 0 ? " has none" : " has one");
  }

  // How long the sequences of a batch are: a list or a tensor of a number for each, which check_bounds looks at.
  std::string lengths(const Term& term, const ArgumentPlan& given) const {
    const Layout* own = layout_of(given);
    const int64_t count = own != nullptr ? own->numel : static_cast<int64_t>(numbers(given).size());
    const int64_t most = longest(term);
    const std::string name(term.argument);
    if (count != size_of('n')) return name + " has " + std::to_string(count) + " numbers for a batch of " + std::to_string(size_of('n'));
    int64_t sum = 0;
    for (const int64_t length : numbers(given)) {
      if (length < 0 || length > most) return name + " holds " + std::to_string(length) + ", and " + std::to_string(most) + " is the most";
      sum += length;
    }
    return sum <= all_together(term) ? "" : name + " holds " + std::to_string(sum) + " together, and there are " + std::to_string(all_together(term));
  }

  // Some kernels write to an "out" argument as if each element had a place of its own.
  std::string outputs() const {
    for (size_t index = 0; index < schema_.arguments().size(); ++index) {
      if (!schema_.arguments()[index].is_out()) continue;
      const ArgumentPlan& given = plan_.arguments[index];
      const auto overlaps = [](const ArgumentPlan& tensor) { return tensor.tag == Tag::kTensor && tensor.layout->span < tensor.layout->numel; };
      if (!overlaps(given) && std::none_of(given.items.begin(), given.items.end(), overlaps)) continue;
      return schema_.arguments()[index].name() + " has several elements in one place, as expand() makes them; clone() it first";
    }
    return "";
  }

  // The length of a signal whose half spectrum the tensor holds along the last of the operator's dimensions.
  std::string half(const Term& term, const ArgumentPlan& given) const {
    const Layout* layout = layout_of(argument(term.what));
    const Sizes dims = numbers(argument("dim"));
    if (layout == nullptr || dims.empty() || layout->sizes.empty()) return "";
    const auto rank = static_cast<int64_t>(layout->sizes.size());
    const int64_t length = given.prototype.toInt(), size = layout->sizes[static_cast<size_t>(dims.back() < 0 ? dims.back() + rank : dims.back())];
    if (length >= 1 && length / 2 + 1 == size) return "";
    return std::string(term.argument) + " is " + std::to_string(length) + " for a half spectrum of " + std::to_string(size);
  }

  const Plan& plan_;
  const c10::FunctionSchema& schema_;
  Names names_;
  std::optional<size_t> count_;
  std::vector<Names> each_;
};

}  // namespace

std::string breach_of_contract(const Plan& plan) { return Check(plan).run(); }

void note_apart(Plan& plan) {
  const Check check(plan);
  for (const Term& term : terms_of(plan)) {
    if (term.each || !check.has(term.argument)) continue;
    const size_t index = check.index_of(term.argument);
    const ArgumentPlan& argument = plan.arguments[index];
    if (argument.tag == Tag::kTensor && Check::lies_apart(term, *argument.layout)) plan.apart.push_back(index);
  }
}

void note_bounds(Plan& plan, bool of_elements) {
  Check check(plan);
  if (!check.run().empty()) return;
  for (const Term& term : terms_of(plan)) {
    if (!check.has(term.argument)) continue;
    const size_t index = check.index_of(term.argument);
    if (term.relation == ',') plan.bounds.push_back({index, 1, 0, Bound::Kind::kZero});
    if (!of_elements) continue;
    if (plan.arguments[index].tag != Tag::kTensor || plan.arguments[index].layout->numel == 0) continue;
    if (term.relation == '%') {
      if (!term.flag.empty() && !check.flag_holds(term)) continue;
      if (const auto bound = check.bound(term, index)) plan.bounds.push_back(*bound);
    } else if (term.relation == ')') {
      plan.bounds.push_back({index, std::min(check.longest(term), kLengthMax) + 1, 0, Bound::Kind::kOffsets});
      plan.bounds.push_back({index, std::min(check.all_together(term), kLengthMax) + 1, 0, Bound::Kind::kLengths});
    } else if (term.relation == '@' || term.relation == '$') {
      plan.bounds.push_back({index, check.size_along_axis(term) + 1, 0, term.relation == '@' ? Bound::Kind::kOffsets : Bound::Kind::kLengths});
    }
  }
}

}  // namespace forebay::worker
