#include "trial.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/strides.h>

namespace forebay::worker {

namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;  // compared at once
constexpr int64_t kRuns = 64;  // of equal values, as many in a tensor

double tolerance(c10::ScalarType type) {
  switch (c10::toRealValueType(type)) {
    case c10::ScalarType::Double:
      return 1e-11;
    case c10::ScalarType::Float:
      return 1e-5;
    default:
      return 2e-2;
  }
}

// The new storages' outputs, in the order of their words.
template <class Outputs, class Use>
void for_each_new(Outputs& outputs, const Use& use) {
  for (auto& output : outputs) {
    if (output.tag == wire::OutputTag::kNew) use(output);
    if (output.tag == wire::OutputTag::kList) for_each_new(output.items, use);
  }
}

void collect(const std::vector<OutputPlan>& outputs, const std::vector<c10::IValue>& values, std::vector<at::Tensor>& made) {
  for (size_t index = 0; index < outputs.size(); ++index) {
    if (outputs[index].tag == wire::OutputTag::kNew) made.push_back(values[index].isTensor() ? values[index].toTensor() : at::Tensor());
    if (outputs[index].tag == wire::OutputTag::kList) collect(outputs[index].items, values[index].toList().vec(), made);
  }
}

// The dimension that is as long as that of rows, and the same one, counted from the last or else from the first.
std::optional<size_t> same_dimension(const std::vector<int64_t>& sizes, const std::vector<int64_t>& rows, size_t dimension) {
  const size_t from_end = rows.size() - dimension;
  if (sizes.size() >= from_end && sizes[sizes.size() - from_end] == rows[dimension]) return sizes.size() - from_end;
  if (sizes.size() > dimension && sizes[dimension] == rows[dimension]) return dimension;
  return std::nullopt;
}

bool is_gapless(const wire::Output& output, int64_t item_bytes) {
  const auto elements = wire::elements_of(output.geometry.sizes);
  return elements && *elements * item_bytes == output.storage_bytes && wire::span_of(output.geometry) == *elements;
}

// The dimension in which parts are smaller than the whole; none where all sizes are the same. `fits`: whether they are such parts at all.
std::optional<size_t> cut_dimension(c10::IntArrayRef part, c10::IntArrayRef whole, int64_t devices, bool& fits) {
  std::optional<size_t> cut;
  fits = part.size() == whole.size();
  for (size_t dim = 0; fits && dim < whole.size(); ++dim) {
    if (part[dim] == whole[dim]) continue;
    fits = !cut && part[dim] * devices == whole[dim];
    cut = dim;
  }
  return cut;
}

}  // namespace

namespace {

// The squares of the norms of two tensors and of their difference.
struct Squares {
  bool same_finite = true;  // whether the same elements are finite; the others do not count
  double one = 0, other = 0, difference = 0;
};

void add_squares(const at::Tensor& one, const at::Tensor& other, Squares& squares) {
  if (one.numel() > kPieceElements) {  // in doubles they take twice the memory and more
    const auto longest = std::max_element(one.sizes().begin(), one.sizes().end()) - one.sizes().begin();
    const int64_t half = one.size(longest) / 2, rest = one.size(longest) - half;
    add_squares(one.narrow(longest, 0, half), other.narrow(longest, 0, half), squares);
    return add_squares(one.narrow(longest, half, rest), other.narrow(longest, half, rest), squares);
  }
  const auto wide = one.is_complex() ? c10::ScalarType::ComplexDouble : c10::ScalarType::Double;
  at::Tensor here = one.to(wide), there = other.to(wide);
  const at::Tensor finite = at::isfinite(here);
  squares.same_finite = squares.same_finite && at::equal(finite, at::isfinite(there));
  if (!squares.same_finite) return;
  here = at::where(finite, here, at::zeros({}, here.options()));
  there = at::where(finite, there, at::zeros({}, there.options()));
  const auto square = [](const at::Tensor& tensor) { return std::pow(tensor.norm().item<double>(), 2); };
  squares.one += square(here);
  squares.other += square(there);
  squares.difference += square(here - there);
}

// Of what is finite.
double norm_of(const at::Tensor& tensor) {
  Squares squares;
  add_squares(tensor, tensor, squares);
  return std::sqrt(squares.one);
}

}  // namespace

bool is_close(const at::Tensor& one, const at::Tensor& other, double length) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  if (one.numel() == 0) return true;
  if (!one.is_floating_point() && !one.is_complex()) return at::equal(one, other);
  Squares squares;
  add_squares(one, other, squares);
  length = std::max({length, std::sqrt(squares.one), std::sqrt(squares.other)});
  return squares.same_finite && std::sqrt(squares.difference) <= tolerance(one.scalar_type()) * length;
}

bool is_telling(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const bool may_be_infinite = tensor.is_floating_point() || tensor.is_complex();
  return (may_be_infinite ? at::isfinite(tensor).logical_and(tensor.ne(0)) : tensor.ne(0)).any().item<bool>();
}

bool is_varied(const at::Tensor& tensor) {
  const bool is_truth = tensor.scalar_type() == c10::ScalarType::Bool;
  return is_telling(tensor) && (!is_truth || tensor.numel() < 2 || !tensor.all().item<bool>());
}

Trial::Trial(Gang& gang, const Device& device, Storages& storages, Layouts& layouts, Caller& caller, Shares& shares, uint64_t number, Plan& plan,
             const wire::Words& words)
    : gang_(gang),
      device_(device),
      storages_(storages),
      layouts_(layouts),
      caller_(caller),
      shares_(shares),
      plan_(plan),
      source_(gang.template_of(number)),
      op_(gang.operator_of(number)),
      words_(words) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kStorage) tensors_.push_back(index);
  }
  size_t tensor = 0;
  for (const auto& argument : source_.arguments) note_tensors(argument, tensor);
}

// `tensor`: its number, as the plan counts tensors.
void Trial::note_tensors(const wire::Argument& argument, size_t& tensor) {
  if (argument.tag == wire::Tag::kTensor) {
    dtypes_.push_back(argument.geometry.dtype);
    writes_.push_back(std::find(plan_.mutated.begin(), plan_.mutated.end(), tensor) != plan_.mutated.end());
  }
  if (argument.tag == wire::Tag::kTensor || argument.tag == wire::Tag::kScalarTensor || argument.tag == wire::Tag::kNone) ++tensor;
  for (const auto& item : argument.items) note_tensors(item, tensor);
}

Memory Trial::whole_memory() {
  Memory memory;
  for (const uint64_t id : Gang::storages_of(plan_, words_)) {
    const Entry& entry = storages_.at(id);
    memory.emplace(id, entry.is_untouched() ? device_.allocate(entry.bytes(), /*zeroed=*/true)
                                            : shares_.whole(id, [&](int64_t bytes) { return device_.allocate(bytes, /*zeroed=*/false); }));
  }
  return memory;
}

std::optional<Way> Trial::way() {
  if (!plan_.sparse.empty()) return std::nullopt;
  const Memory memory = whole_memory();
  const Run whole = run(plan_, words_, memory);
  bool composed = plan_.random;
  if (auto way = composed_way(whole, memory, composed); way || composed) return way;
  for (int kind = 0; kind < 8; ++kind) {
    const Attempt attempt{(kind & 4) == 0, (kind & 1) != 0, (kind & 2) != 0};
    try {
      if (!localise(attempt)) continue;
      had_parts_ = true;
      if (!runs_as(whole, memory)) continue;
      if (!way_.is_sure) try_other_values(memory);
      return way_;
    } catch (const RankLost&) {
      throw;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception&) {  // sizes of the parts do not fit each other
    }
  }
  return std::nullopt;
}

// Compositions.

std::optional<Way> Trial::composed_way(const Run& whole, const Memory& memory, bool& composed) {
  try {
    if (!localise({false, false, false})) return std::nullopt;
    DividedCall call{source_, local_, op_, {}};
    for (size_t tensor = 0; tensor < way_.starts.size(); ++tensor) {
      if (way_.starts[tensor].kind == Way::Start::Kind::kRows) call.rows.push_back({tensor, way_.starts[tensor].period});
    }
    const auto compositions = compositions_of(call, gang_);
    if (!compositions) return std::nullopt;
    composed = had_parts_ = true;
    for (const auto& composition : *compositions) {
      if (composes_as(composition, whole, memory)) return way_;
    }
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception&) {  // a step takes no such tensors, or has no room
  }
  return std::nullopt;
}

bool Trial::composes_as(const Composition& composition, const Run& whole, const Memory& memory) {
  if (composition.fits && !composition.fits(words_)) return false;
  std::vector<wire::Words> words;
  std::vector<Run> parts;
  for (int place = 0; place < devices(); ++place) {
    const auto local = local_words(way_, plan_, words_, place, devices());
    if (!local) return false;
    words.push_back(*local);
    parts.push_back({{}, part_of(memory, place)});
    if (!plan_.mutated.empty()) parts.back().memory = copied(parts.back().memory);
  }
  std::vector<uint64_t> results;
  for (size_t index = 0; index < plan_.words.size(); ++index) {
    if (plan_.words[index] == wire::Word::kNew) results.push_back(words_[index]);
  }
  ComposedCall call(gang_, device_, storages_, caller_, composition, std::move(words), results);
  std::vector<Memory> made;
  for (const auto& part : parts) made.push_back(part.memory);
  call.rehearse(made);
  if (!leaves_as(whole, parts)) return false;
  std::vector<const wire::Output*> outputs;
  for_each_new(source_.outputs, [&](const wire::Output& output) { outputs.push_back(&output); });
  way_.is_sure = true;
  for (size_t index = 0; index < composition.made.size(); ++index) {
    const auto& one = composition.made[index];
    if (!one.result) continue;
    const auto& output = *outputs[*one.result];
    const auto expected = stored(whole.made[*one.result], output);
    for (int place = 0; place < devices(); ++place) {
      const auto part = one.placement.sharing == Sharing::kRows ? shares_.part(expected, one.bytes, place, one.placement.period) : expected;
      if (!is_close(flat(made[static_cast<size_t>(place)].at(call.id(index)), output.geometry.dtype), flat(part, output.geometry.dtype))) return false;
    }
    way_.is_sure = way_.is_sure && is_varied(flat(expected, output.geometry.dtype));
  }
  for (const size_t tensor : outputs.empty() ? plan_.mutated : std::vector<size_t>()) {
    way_.is_sure = way_.is_sure && is_varied(flat(whole.memory.at(words_[tensors_[tensor]]), dtypes_[tensor]));
  }
  way_.composition = std::make_shared<const Composition>(composition);
  return true;
}

c10::Storage Trial::stored(const at::Tensor& made, const wire::Output& output) const {
  auto storage = device_.allocate(output.storage_bytes, /*zeroed=*/true);
  if (made.defined() && made.numel() > 0) flat(storage, output.geometry.dtype).as_strided(output.geometry.sizes, output.geometry.strides).copy_(made);
  return storage;
}

// Plain parts.

// Whether the parts give what the whole gives; completes the way.
bool Trial::runs_as(const Run& whole, const Memory& memory) {
  tried_ = local_;
  const auto plan = make_plan(local_, op_, device_, layouts_);
  std::vector<Run> parts;
  for (int place = 0; place < devices(); ++place) {
    const auto words = local_words(way_, plan_, words_, place, devices());
    if (!words) return false;
    parts.push_back(run(*plan, *words, part_of(memory, place)));
  }
  if (!leaves_as(whole, parts)) return false;
  size_t index = 0;
  bool fits = true;
  for_each_new(local_.outputs, [&](wire::Output& output) {
    fits = fits && makes_as(index, whole, parts, output);
    ++index;
  });
  if (!fits) return false;
  decide_sums();
  way_.definition = gang_.define_own(local_, op_);
  for (const size_t word : tensors_) {
    const auto fresh = fresh_.find(words_[word]);
    way_.fresh.push_back(fresh == fresh_.end() ? 0 : fresh->second);
  }
  return true;
}

// What a device has of it.
Memory Trial::part_of(const Memory& memory, int place) {
  Memory there;
  for (const auto& [id, storage] : memory) {
    const int64_t period = period_of(id);
    there.emplace(id, period == 0 ? storage : shares_.part(storage, storages_.at(id).bytes(), place, period));
  }
  return there;
}

Memory Trial::copied(const Memory& memory) const {
  Memory copies;
  for (const auto& [id, storage] : memory) {
    auto& copy = copies[id] = device_.allocate(static_cast<int64_t>(storage.nbytes()), /*zeroed=*/false);
    device_.copy(copy, 0, storage, 0, static_cast<int64_t>(storage.nbytes()));
  }
  return copies;
}

// With values that tell more than those of the call: all zeros and falsehoods, say.
void Trial::try_other_values(const Memory& memory) {
  const Way way = std::exchange(way_, Way());
  const auto open = std::exchange(open_, {});
  const wire::Template local = local_;
  for (const bool in_runs : {false, true}) {
    if (!plan_.mutated.empty()) break;  // what it writes to is what it is given
    try {
      const Memory others = other_values(memory, in_runs);
      local_ = tried_;
      way_ = Way();
      way_.starts = way.starts;
      open_.clear();
      if (!runs_as(run(plan_, words_, others), others) || !way_.is_sure) continue;
      bool same = true;
      for (size_t index = 0; index < way.made.size(); ++index) {
        same = same && (way.made[index].placement == way_.made[index].placement || std::find(open.begin(), open.end(), index) != open.end());
      }
      if (same) return;
    } catch (const RankLost&) {
      throw;
    } catch (const std::exception&) {  // it takes no such values
    }
  }
  way_ = way;
  local_ = local;
}

// Numbers are drawn, and some are zero or infinite; truths come in runs or not. Whole numbers, which may be indices, stay.
Memory Trial::other_values(const Memory& memory, bool in_runs) const {
  Memory others = copied(memory);
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    at::Tensor values = flat(others.at(words_[tensors_[tensor]]), dtypes_[tensor]);
    const bool is_truth = values.scalar_type() == c10::ScalarType::Bool;
    if (!is_truth && !values.is_floating_point() && !values.is_complex()) continue;
    const int64_t count = values.numel();
    const at::Tensor places = at::arange(count, values.options().dtype(c10::ScalarType::Long));
    const int64_t run = in_runs ? std::max<int64_t>(count / kRuns, 1) : 1;
    const at::Tensor chance = at::rand({count / run + 1}, values.options().dtype(c10::ScalarType::Float)).index_select(0, places.div(run, "trunc"));
    if (is_truth) {
      values.copy_(chance.lt(0.5));
    } else {
      values.copy_(at::randn({count}, chance.options()));
      if (in_runs) values.masked_fill_(chance.lt(0.3), -std::numeric_limits<double>::infinity()).masked_fill_(chance.gt(0.7), 0);
    }
  }
  return others;
}

int64_t Trial::period_of(uint64_t id) {
  const auto fresh = fresh_.find(id);
  if (fresh != fresh_.end()) return fresh->second;
  const Share* share = storages_.at(id).share();
  return share != nullptr && share->placement.sharing == Sharing::kRows ? share->placement.period : 0;
}

// The template of the parts, but for its results.
bool Trial::localise(Attempt attempt) {
  local_ = source_;
  way_ = Way();
  way_.starts.resize(tensors_.size());
  rows_.clear();
  fresh_.clear();
  open_.clear();
  size_t tensor = 0;
  bool fits = true;
  for (auto& argument : local_.arguments) fits = fits && localise(argument, tensor);
  if (!fits) return false;
  if (attempt.fresh_rows) {
    tensor = 0;
    for (const auto& argument : source_.arguments) place_targets(argument, tensor);
    if (!fresh_.empty()) {  // again, with them
      local_ = source_;
      rows_.clear();
      tensor = 0;
      for (auto& argument : local_.arguments) fits = fits && localise(argument, tensor);
      if (!fits) return false;
    }
  }
  if (attempt.parts_of_copies) {
    tensor = 0;
    for (auto& argument : local_.arguments) take_part(argument, tensor);
  }
  if (attempt.sizes) divide_sizes();
  return true;
}

bool Trial::localise(wire::Argument& argument, size_t& tensor) {
  if (argument.tag == wire::Tag::kTensorList) {
    return std::all_of(argument.items.begin(), argument.items.end(), [&](wire::Argument& item) { return localise(item, tensor); });
  }
  if (argument.tag != wire::Tag::kTensor) return true;
  const size_t index = tensor++;
  const int64_t period = period_of(words_[tensors_[index]]);
  if (period == 0) return true;
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(argument.geometry.dtype)));
  const auto local = local_view(argument.geometry, item_bytes, period, devices());
  if (!local) return false;
  rows_.push_back({argument.geometry.sizes, local->dimension, local->rows});
  argument.geometry = local->geometry;
  way_.starts[index] = {Way::Start::Kind::kRows, item_bytes, period, local->room, 0};
  return true;
}

void Trial::place_targets(const wire::Argument& argument, size_t& tensor) {
  for (const auto& item : argument.items) place_targets(item, tensor);
  if (argument.tag != wire::Tag::kTensor) return;
  const size_t index = tensor++;
  const uint64_t id = words_[tensors_[index]];
  const Entry& entry = storages_.at(id);
  const auto& geometry = argument.geometry;
  const bool may_be_rows = entry.is_untouched() || (writes_[index] && period_of(id) == 0);
  if (!may_be_rows || rows_.empty()) return;
  const auto dim = same_dimension(geometry.sizes, rows_.front().sizes, rows_.front().dimension);
  if (!dim) return;
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(geometry.dtype)));
  const int64_t period = forebay::worker::period_of(geometry, *dim, rows_.front().rows, item_bytes);
  if (period == 0 || entry.bytes() % period != 0) return;
  const auto local = local_view(geometry, item_bytes, period, devices());
  if (local && local->dimension == *dim) fresh_.emplace(id, period);
}

// Of a copy one of whose dimensions is as long as that of rows.
void Trial::take_part(wire::Argument& argument, size_t& tensor) {
  for (auto& item : argument.items) take_part(item, tensor);
  if (argument.tag != wire::Tag::kTensor) return;
  auto& start = way_.starts[tensor++];
  auto& geometry = argument.geometry;
  for (const auto& rows : rows_) {
    const auto dim = same_dimension(geometry.sizes, rows.sizes, rows.dimension);
    if (start.kind != Way::Start::Kind::kSame || !dim || geometry.sizes[*dim] != rows.rows) continue;
    geometry.sizes[*dim] /= devices();
    start.kind = Way::Start::Kind::kPart;
    start.step = geometry.sizes[*dim] * geometry.strides[*dim];
  }
}

// Lists that are called sizes, where one of them is that of rows; and the number of rows.
void Trial::divide_sizes() {
  const auto& schema = op_.schema().arguments();
  for (size_t index = 0; index < local_.arguments.size(); ++index) {
    auto& argument = local_.arguments[index];
    if (argument.tag == wire::Tag::kInt && schema[index].name() == "N" && argument.integer % devices() == 0) argument.integer /= devices();
    if (argument.tag != wire::Tag::kIntList || schema[index].name().find("size") == std::string::npos || argument.list.empty()) continue;
    for (const auto& rows : rows_) {
      const auto dim = same_dimension(argument.list, rows.sizes, rows.dimension);
      if (!dim) continue;
      argument.list[*dim] /= devices();
      break;
    }
  }
}

Trial::Run Trial::run(Plan& plan, const wire::Words& words, const Memory& memory) {
  Run done{{}, plan.mutated.empty() ? memory : copied(memory)};
  const Loan loan(storages_, done.memory);
  caller_.bind(plan, words);
  collect(plan.outputs, caller_.results(plan), done.made);
  if (is_short()) {
    for (auto& made : done.made) made = off_device(made);
  }
  return done;
}

bool Trial::is_short() const { return !gang_.has_room(0, plan_.new_bytes * (devices() + 3)); }

// In memory of the host that does not count.
at::Tensor Trial::off_device(const at::Tensor& made) const {
  if (!made.defined()) return made;
  const auto memory = device_.allocate_parked(made.numel() * static_cast<int64_t>(made.itemsize()));
  return at::empty({0}, made.options().device(at::kCPU)).set_(memory, 0, made.sizes(), c10::contiguous_strides(made.sizes())).copy_(made);
}

// Whether the parts leave the storages that they are given as the whole does.
bool Trial::leaves_as(const Run& whole, const std::vector<Run>& parts) {
  if (plan_.mutated.empty()) return true;
  for (size_t index = 0; index < tensors_.size(); ++index) {
    const uint64_t id = words_[tensors_[index]];
    const int64_t period = period_of(id);
    if (writes_[index] && way_.starts[index].kind == Way::Start::Kind::kPart) return false;  // who writes to a part of a copy leaves the copies different
    for (size_t place = 0; place < parts.size(); ++place) {
      const auto& storage = whole.memory.at(id);
      const auto expected = period == 0 ? storage : shares_.part(storage, storages_.at(id).bytes(), static_cast<int>(place), period);
      if (!is_close(flat(parts[place].memory.at(id), dtypes_[index]), flat(expected, dtypes_[index]))) return false;
    }
  }
  return true;
}

at::Tensor Trial::flat(const c10::Storage& storage, uint8_t dtype) const {
  const auto type = static_cast<c10::ScalarType>(dtype);
  const auto elements = static_cast<int64_t>(storage.nbytes() / c10::elementSize(type));
  return at::empty({0}, at::TensorOptions().dtype(type).device(device_.where())).set_(storage, 0, {elements}, {1});
}

// Whether the parts make a new storage of the whole's, in some placement, which its output and the way then have.
bool Trial::makes_as(size_t index, const Run& whole, const std::vector<Run>& parts, wire::Output& output) {
  const at::Tensor& result = whole.made[index];
  std::vector<at::Tensor> results;
  for (const auto& part : parts) results.push_back(part.made[index]);
  if (!result.defined() || !std::all_of(results.begin(), results.end(), [](const at::Tensor& part) { return part.defined(); })) return false;
  const int64_t bytes = output.storage_bytes;
  if (result.numel() == 0 && output.storage_bytes == 0) {
    way_.made.push_back({{Sharing::kCopies, 0, 0}, bytes});
    return results.front().numel() == 0;
  }
  const auto item_bytes = static_cast<int64_t>(result.itemsize());
  if (!is_gapless(output, item_bytes)) return false;
  bool fits = true;
  const auto cut = cut_dimension(results.front().sizes(), result.sizes(), devices(), fits);
  if (!fits) return false;
  if (!cut) return is_sum(result, results, output.geometry.dtype, bytes);
  std::vector<int64_t> counts{result.size(static_cast<int64_t>(*cut))};
  for (const auto& rows : rows_) counts.push_back(rows.rows);
  way_.is_sure = way_.is_sure && is_telling(result);
  return std::any_of(counts.begin(), counts.end(), [&](int64_t rows) { return makes_rows(result, results, *cut, rows, output); });
}

// Whether the parts are rows of the whole, so many in a period.
bool Trial::makes_rows(const at::Tensor& whole, const std::vector<at::Tensor>& parts, size_t dimension, int64_t rows, wire::Output& output) {
  const auto dim = static_cast<int64_t>(dimension);
  const int64_t item_bytes = static_cast<int64_t>(whole.itemsize()), bytes = output.storage_bytes;
  const int64_t period = forebay::worker::period_of(output.geometry, dimension, rows, item_bytes);
  if (period == 0 || bytes % period != 0 || whole.size(dim) % rows != 0 || rows % devices() != 0) return false;
  const auto local = local_view(output.geometry, item_bytes, period, devices());
  if (!local || local->dimension != dimension) return false;
  std::vector<at::Tensor> pieces;
  for (const auto& part : parts) pieces.push_back(part.unflatten(dim, {whole.size(dim) / rows, rows / devices()}));
  if (!is_close(at::cat(pieces, dim + 1).flatten(dim, dim + 1), whole)) return false;
  output.geometry = local->geometry;
  output.storage_bytes = bytes / devices();
  way_.made.push_back({{Sharing::kRows, period, 0}, bytes});
  return true;
}

bool Trial::is_sum(const at::Tensor& whole, const std::vector<at::Tensor>& parts, uint8_t dtype, int64_t bytes) {
  if (static_cast<uint8_t>(whole.scalar_type()) != dtype || whole.scalar_type() == c10::ScalarType::Bool) return false;
  at::Tensor sum = is_short() ? off_device(parts.front()) : parts.front().clone();
  for (size_t place = 1; place < parts.size(); ++place) sum.add_(parts[place]);
  double length = 0;
  for (const auto& part : parts) length = std::max(length, norm_of(part));
  const bool is_sum = is_close(sum, whole, length);
  const bool is_mean = whole.is_floating_point() && is_close(sum.div_(devices()), whole, length);
  if (is_sum && is_mean) open_.push_back(way_.made.size());
  way_.made.push_back({{is_sum ? Sharing::kSum : Sharing::kMean, 0, dtype}, bytes});
  return is_sum || is_mean;
}

void Trial::decide_sums() {
  const auto is_open = [&](size_t index) { return std::find(open_.begin(), open_.end(), index) != open_.end(); };
  std::optional<Sharing> known;
  for (size_t index = 0; index < way_.made.size(); ++index) {
    const Sharing sharing = way_.made[index].placement.sharing;
    if ((sharing == Sharing::kSum || sharing == Sharing::kMean) && !is_open(index)) known = sharing;
  }
  for (const size_t index : open_) way_.made[index].placement.sharing = known.value_or(Sharing::kSum);
  way_.is_sure = way_.is_sure && (open_.empty() || known);
}

}  // namespace forebay::worker
