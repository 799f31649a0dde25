#include "sharding/composition.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>

#include <ATen/core/Reduction.h>
#include <ATen/core/function_schema.h>
#include <c10/core/ScalarType.h>

namespace forebay::worker {

namespace {

using Source = Composition::Source;
using Use = Composition::Use;

// Draws in place that look at nothing but their numbers, and those that make their result.
constexpr std::array<std::string_view, 8> kFills{"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"};
constexpr std::array<std::string_view, 1> kDraws{"bernoulli.p"};

// An argument of a step, and where a call's words come from.
struct Given {
  wire::Argument argument;
  std::vector<Source> words;
};

// What a device has of a tensor.
struct View {
  wire::Geometry geometry;
  Source storage, offset;
  int64_t bytes = 0;           // of its storage here
  std::optional<size_t> made;  // its storage, if a step makes it
};

// What comes of a step.
struct Taken {
  wire::Output output;
  std::optional<size_t> made;
};

struct Rows {
  size_t dimension;
  int64_t rows;  // in a period
};

std::string name_of(const c10::OperatorHandle& op) {
  const std::string name(wire::local_name(op.schema().name()));
  return op.schema().overload_name().empty() ? name : name + "." + op.schema().overload_name();
}

int64_t bytes_of(uint8_t dtype) { return static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(dtype))); }

int64_t elements_of(const wire::Geometry& geometry) { return wire::elements_of(geometry.sizes).value_or(0); }

Source constant(uint64_t word) {
  return [word](const Use&) { return word; };
}

Source number(double value) { return constant(wire::bits_word(value)); }

Given given_as(wire::Tag tag, std::vector<Source> words = {}) {
  Given given;
  given.argument.tag = tag;
  given.words = std::move(words);
  return given;
}

Given none() { return {}; }

Given flag(bool value) {
  Given given = given_as(wire::Tag::kBool);
  given.argument.flag = value;
  return given;
}

Given flags(std::vector<int64_t> values) {
  Given given = given_as(wire::Tag::kBoolList);
  given.argument.list = std::move(values);
  return given;
}

Given integer(int64_t value) {
  Given given = given_as(wire::Tag::kInt);
  given.argument.integer = value;
  return given;
}

Given first_dimension() {
  Given given = given_as(wire::Tag::kIntList);
  given.argument.list = {0};
  return given;
}

Given real(Source value) { return given_as(wire::Tag::kDouble, {std::move(value)}); }

Given scalar(Source value) { return given_as(wire::Tag::kScalarDouble, {std::move(value)}); }

// A number where an operator wants a tensor.
Given wrapped(Source value) {
  Given given = given_as(wire::Tag::kScalarTensor, {std::move(value)});
  given.argument.dtype = static_cast<uint8_t>(c10::ScalarType::Double);
  given.argument.flag = true;
  return given;
}

Given tensor(const View& view) {
  Given given = given_as(wire::Tag::kTensor, {view.storage, view.offset});
  given.argument.geometry = view.geometry;
  return given;
}

Given tensors(const std::vector<View>& views) {
  Given given = given_as(wire::Tag::kTensorList);
  for (const auto& view : views) {
    given.argument.items.push_back(tensor(view).argument);
    given.words.insert(given.words.end(), {view.storage, view.offset});
  }
  return given;
}

Taken nothing() { return {}; }

// The tensor argument of that number.
Taken same(uint64_t tensor) {
  Taken taken;
  taken.output.tag = wire::OutputTag::kSame;
  taken.output.same = tensor;
  return taken;
}

Taken made(const View& view) {
  Taken taken{{}, view.made};
  taken.output.tag = wire::OutputTag::kNew;
  taken.output.geometry = view.geometry;
  taken.output.storage_bytes = view.bytes;
  return taken;
}

// Puts a composition together.
class Composer {
 public:
  Composer(const DividedCall& call, Gang& gang) : call_(call), gang_(gang), devices_(call.parts) {}

  int64_t devices() const { return devices_; }
  Composition take() { return std::move(composition_); }
  size_t steps() const { return composition_.steps.size(); }
  void sum_before(size_t step, std::vector<size_t> made) { composition_.steps[step].sums = std::move(made); }
  void fits(std::function<bool(const wire::Words&)> fits) { composition_.fits = std::move(fits); }

  // An argument of the call.
  const wire::Argument& whole(const char* name) const { return call_.whole.arguments[place_of(name)]; }
  bool has(const char* name) const {
    const auto place = call_.op.schema().argumentIndexWithName(name);
    return place && call_.whole.arguments[static_cast<size_t>(*place)].tag != wire::Tag::kNone;
  }
  size_t word_of(const char* name) const { return worker::word_of(call_.whole, place_of(name)); }
  Source word(const char* name) const {
    return [word = word_of(name)](const Use& use) { return use.words[word]; };
  }
  View view(const char* name) const {
    const size_t word = word_of(name);
    return {call_.local.arguments[place_of(name)].geometry, [word](const Use& use) { return use.words[word]; },
            [word](const Use& use) { return use.words[word + 1]; }, 0, std::nullopt};
  }
  // A tensor that may be left out.
  Given given(const char* name) const {
    if (has(name)) return tensor(view(name));
    return none();
  }
  // What is no tensor and has no words.
  Given argument(const char* name) const { return {whole(name), {}}; }
  // All arguments, as each device has them.
  std::vector<Given> local_arguments() const { return given_as_words(call_.local.arguments); }
  size_t place_of(const char* name) const { return static_cast<size_t>(call_.op.schema().argumentIndexWithName(name).value()); }
  GangTemplates::Operator own() const { return {call_.whole.op, call_.op}; }
  // How it is cut; none where it is not in rows.
  std::optional<Rows> rows(const char* name) const {
    size_t tensor = 0;
    for (size_t place = 0; place < place_of(name); ++place) tensor += tensors_of(call_.whole.arguments[place]);
    const auto found = std::find_if(call_.rows.begin(), call_.rows.end(), [&](const auto& argument) { return argument.tensor == tensor; });
    const auto& geometry = whole(name).geometry;
    if (whole(name).tag != wire::Tag::kTensor || found == call_.rows.end()) return std::nullopt;
    const auto local = local_view(geometry, bytes_of(geometry.dtype), found->period, devices_);
    if (!local) return std::nullopt;
    return Rows{local->dimension, local->rows};
  }

  // Storages that all devices make alike, or (kSum) each its own.
  View draft(uint8_t dtype, const std::vector<int64_t>& sizes, Sharing sharing, bool from_zeros = false) {
    wire::Geometry geometry{dtype, 0, sizes, std::vector<int64_t>(sizes.size(), 1)};
    for (size_t dim = sizes.size(); dim-- > 1;) geometry.strides[dim - 1] = geometry.strides[dim] * sizes[dim];
    return add(geometry, elements_of(geometry) * bytes_of(dtype), {sharing, 0, dtype}, std::nullopt, from_zeros);
  }
  View zeros(const wire::Geometry& geometry) {
    return add(geometry, wire::span_of(geometry) * bytes_of(geometry.dtype), {Sharing::kCopies, 0, 0}, std::nullopt, /*from_zeros=*/true);
  }
  View result(size_t output, Sharing sharing) {
    const auto& whole = call_.whole.outputs[output];
    return add(whole.geometry, whole.storage_bytes, {sharing, 0, sharing == Sharing::kSum ? whole.geometry.dtype : uint8_t{0}}, new_of(output), false);
  }
  // A draft that is as an output of the whole call.
  View as_output(size_t output) {
    const auto& whole = call_.whole.outputs[output];
    return add(whole.geometry, whole.storage_bytes, {Sharing::kCopies, 0, 0}, std::nullopt, false);
  }
  // A result in rows; none where it cannot be cut so. `from_zeros`: a step writes to it.
  std::optional<View> result_rows(size_t output, const Rows& rows, bool from_zeros = false) {
    const auto& whole = call_.whole.outputs[output];
    const int64_t period = rows_period(whole.geometry, rows), item_bytes = bytes_of(whole.geometry.dtype);
    if (period == 0 || elements_of(whole.geometry) * item_bytes != whole.storage_bytes || wire::span_of(whole.geometry) * item_bytes != whole.storage_bytes) return std::nullopt;
    const auto local = local_view(whole.geometry, item_bytes, period, devices_);
    return add(local->geometry, whole.storage_bytes, {Sharing::kRows, period, 0}, new_of(output), from_zeros);
  }
  int64_t period_of_made(const View& view) const { return composition_.made[*view.made].placement.period; }
  // The period of a tensor that is cut as another one; 0 where it cannot be.
  int64_t rows_period(const wire::Geometry& geometry, const Rows& rows) const {
    if (rows.dimension >= geometry.sizes.size()) return 0;
    const int64_t item_bytes = bytes_of(geometry.dtype), period = period_of(geometry, rows.dimension, rows.rows, item_bytes);
    if (period == 0 || (wire::span_of(geometry) * item_bytes) % period != 0) return 0;
    const auto local = local_view(geometry, item_bytes, period, devices_);
    return local && local->dimension == rows.dimension ? period : 0;
  }

  Composition::Step& step(const GangTemplates::Operator& op, std::vector<Given> given, const std::vector<Taken>& taken, bool random = false) {
    wire::Template source;
    source.op = op.number;
    source.flags = static_cast<uint8_t>((call_.whole.flags & ~wire::kTemplateRandom) | (random ? wire::kTemplateRandom : 0));
    Composition::Step step;
    for (auto& one : given) {
      source.arguments.push_back(std::move(one.argument));
      step.words.insert(step.words.end(), one.words.begin(), one.words.end());
    }
    for (const auto& one : taken) {
      source.outputs.push_back(one.output);
      if (!one.made) continue;
      step.makes.push_back(*one.made);
      step.words.push_back([made = *one.made](const Use& use) { return use.ids[made]; });
    }
    if (random) {  // the call's seed and counter are its last words
      step.words.push_back([](const Use& use) { return use.words[use.words.size() - 2]; });
      step.words.push_back([](const Use& use) { return use.words.back(); });
    }
    step.definition = gang_.templates().define_own(source, op.handle);
    composition_.steps.push_back(std::move(step));
    return composition_.steps.back();
  }
  Composition::Step& step(const char* name, std::vector<Given> given, const std::vector<Taken>& taken, bool random = false) {
    return step(gang_.templates().own_operator(name), std::move(given), taken, random);
  }
  // The call's own draw, in place, into other storage.
  void draw(const View& target) {
    auto given = given_as_words(call_.whole.arguments);
    given.front() = tensor(target);
    step(own(), std::move(given), {same(0)}, /*random=*/true);
  }
  // As draw, of a draw that makes its result.
  void draw(const View& like, const View& target) {
    auto given = given_as_words(call_.whole.arguments);
    given.front() = tensor(like);
    step(own(), std::move(given), {made(target)}, /*random=*/true);
  }
  // Each device keeps its rows of a copy: all of the target's storage, `rows` of so many bytes a period.
  Composition::Step& keep(const View& copy, const View& target, int64_t period) {
    const int64_t item_bytes = bytes_of(copy.geometry.dtype), run = period / item_bytes / devices_;
    const int64_t periods = wire::span_of(copy.geometry) * item_bytes / period;
    const View part{{copy.geometry.dtype, 0, {periods, run}, {run * devices_, 1}}, copy.storage,
                    [run](const Use& use) { return static_cast<uint64_t>(use.place * run); }, 0, std::nullopt};
    const View all{{copy.geometry.dtype, 0, {periods, run}, {run, 1}}, target.storage, target.offset, 0, std::nullopt};
    return step("copy_", {tensor(all), tensor(part), flag(false)}, {same(0)});
  }

 private:
  static size_t tensors_of(const wire::Argument& argument) {
    return std::accumulate(argument.items.begin(), argument.items.end(), size_t{argument.tag == wire::Tag::kTensor},
                           [](size_t sum, const auto& item) { return sum + tensors_of(item); });
  }

  // Which new storage of the call an output is.
  size_t new_of(size_t output) const {
    const auto& outputs = call_.whole.outputs;
    return static_cast<size_t>(std::count_if(outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(output), [](const auto& one) { return one.tag == wire::OutputTag::kNew; }));
  }

  // Arguments of the call, each with its own words.
  static std::vector<Given> given_as_words(const std::vector<wire::Argument>& arguments) {
    std::vector<Given> given;
    size_t word = 0;
    for (const auto& argument : arguments) {
      given.push_back({argument, {}});
      for (const size_t end = word + words_of(argument); word < end; ++word) given.back().words.push_back([word](const Use& use) { return use.words[word]; });
    }
    return given;
  }

  View add(const wire::Geometry& geometry, int64_t bytes, const Placement& placement, std::optional<size_t> result, bool from_zeros) {
    const size_t made = composition_.made.size();
    composition_.made.push_back({placement, bytes, result, from_zeros});
    return {geometry, [made](const Use& use) { return use.ids[made]; }, constant(0), placement.bytes_of(bytes, devices_), made};
  }

  const DividedCall& call_;
  Gang& gang_;
  int64_t devices_;
  Composition composition_;
};

// Draws.

bool is_new(const wire::Output& output) { return output.tag == wire::OutputTag::kNew; }

bool is_among(const auto& names, const std::string& name) {
  const std::string base = name.substr(0, name.find('.'));
  return std::any_of(names.begin(), names.end(), [&](std::string_view one) { return one == name || one == base; });
}

// A draw in place: into other storage on each device, which keeps its rows.
std::optional<Composition> fill(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto rows = composer.rows("self");
  const auto& whole = composer.whole("self").geometry;
  if (!rows || call.rows.size() != 1 || call.whole.outputs.size() != 1) return std::nullopt;
  const int64_t period = composer.rows_period(whole, *rows);
  if (period == 0 || wire::span_of(whole) != elements_of(whole)) return std::nullopt;
  const View drawn = composer.zeros(whole);
  composer.draw(drawn);
  composer.keep(drawn, composer.view("self"), period).writes = true;
  return composer.take();
}

// A draw whose result is as large as what it is given, and depends on nothing else of it.
std::optional<Composition> draw(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto rows = composer.rows("self");
  if (!rows || call.rows.size() != 1 || call.whole.outputs.size() != 1 || !is_new(call.whole.outputs.front())) return std::nullopt;
  const auto kept = composer.result_rows(0, *rows, /*from_zeros=*/true);
  if (!kept) return std::nullopt;
  const View like = composer.zeros(composer.whole("self").geometry), drawn = composer.as_output(0);
  composer.draw(like, drawn);
  composer.keep(drawn, *kept, composer.period_of_made(*kept));
  return composer.take();
}

// A dropout: its mask is drawn whole, as a host's PyTorch draws it (a byte for each element alone), or else by a dropout of zeros.
std::optional<Composition> dropout(const DividedCall& call, Gang& gang, const Device& device) {
  Composer composer(call, gang);
  const auto rows = composer.rows("input");
  const bool mask_alone = device.is_host(), drops = !composer.has("train") || composer.whole("train").flag;
  if (!rows || !drops || !is_new(call.whole.outputs[0]) || !is_new(call.whole.outputs[1])) return std::nullopt;
  const auto result = composer.result_rows(0, *rows), mask = composer.result_rows(1, *rows, /*from_zeros=*/true);
  if (!result || !mask) return std::nullopt;
  const size_t p = composer.word_of("p");
  const auto drop = [p](const wire::Words& words) { return wire::bits_value(words[p]); };
  composer.fits([drop](const wire::Words& words) { return drop(words) >= 0 && drop(words) <= 1; });
  View drawn = mask_alone ? composer.zeros(call.whole.outputs[1].geometry) : composer.as_output(1);
  if (mask_alone) {
    const Source kept = [drop](const Use& use) { return wire::bits_word(1.0 - drop(use.words)); };
    composer.step("bernoulli_.float", {tensor(drawn), real(kept), none()}, {same(0)}, /*random=*/true);
  } else {
    const View zeros = composer.zeros(composer.whole("input").geometry);
    composer.step("native_dropout", {tensor(zeros), real(composer.word("p")), composer.argument("train")}, {made(composer.as_output(0)), made(drawn)}, /*random=*/true);
  }
  composer.keep(drawn, *mask, composer.period_of_made(*mask));
  composer.step("mul.Tensor", {tensor(composer.view("input")), tensor(*mask)}, {made(*result)});
  const Source scale = [drop](const Use& use) { return wire::bits_word(drop(use.words) == 1.0 ? 0.0 : 1.0 / (1.0 - drop(use.words))); };
  composer.step("mul_.Tensor", {tensor(*result), wrapped(scale)}, {same(0)});
  return composer.take();
}

// Batch norms in training.

// What devices share of a channel's mean and variance: each writes those of its rows to a place of its own, and the sum over the devices has all.
struct Moments {
  View mean, variance;
};

Moments moments_of(Composer& composer, const View& input, uint8_t dtype, int64_t channels, const View& mean) {
  const int64_t devices = composer.devices();
  const View none_before[2] = {composer.draft(dtype, {channels}, Sharing::kSum, /*from_zeros=*/true), composer.draft(dtype, {channels}, Sharing::kSum, /*from_zeros=*/true)};
  const View own[2] = {composer.draft(dtype, {channels}, Sharing::kSum), composer.draft(dtype, {channels}, Sharing::kSum)};
  composer.step("batch_norm_update_stats", {tensor(input), tensor(none_before[0]), tensor(none_before[1]), real(number(0))}, {made(own[0]), made(own[1])});
  const View table = composer.draft(dtype, {devices, 2, channels}, Sharing::kSum, /*from_zeros=*/true);
  View place = table;
  place.geometry = {dtype, 0, {2 * channels}, {1}};
  place.offset = [channels](const Use& use) { return static_cast<uint64_t>(use.place * 2 * channels); };
  composer.step("cat.out", {tensors({own[0], own[1]}), integer(0), tensor(place)}, {same(2)});
  View means = table, variances = table;
  means.geometry = variances.geometry = {dtype, 0, {devices, channels}, {2 * channels, 1}};
  variances.offset = constant(static_cast<uint64_t>(channels));
  const View between = composer.draft(dtype, {channels}, Sharing::kCopies), variance = composer.draft(dtype, {channels}, Sharing::kCopies);
  composer.step("var_mean.correction", {tensor(means), first_dimension(), scalar(number(0)), flag(false)}, {made(between), made(mean)}).sums = {*table.made};
  composer.step("mean.dim", {tensor(variances), first_dimension(), flag(false), none()}, {made(variance)});
  composer.step("add_.Tensor", {tensor(variance), tensor(between), scalar(number(1))}, {same(0)});
  return {mean, variance};
}

// How a running statistic goes on, on all devices alike; returns what it is to be.
View moved(Composer& composer, const char* name, const View& now) {
  const View before = composer.view(name);
  View next = now;
  if (before.geometry.dtype != now.geometry.dtype) {
    next = composer.draft(before.geometry.dtype, now.geometry.sizes, Sharing::kCopies);
    composer.step("_to_copy", {tensor(now), integer(before.geometry.dtype), none(), none(), none(), flag(false), none()}, {made(next)});
  }
  const View after = composer.draft(before.geometry.dtype, now.geometry.sizes, Sharing::kCopies);
  const Source kept = [momentum = composer.word_of("momentum")](const Use& use) { return wire::bits_word(1.0 - wire::bits_value(use.words[momentum])); };
  composer.step("mul.Tensor", {tensor(before), wrapped(kept)}, {made(after)});  // not by a difference, which is no number where both are infinite
  composer.step("add_.Tensor", {tensor(after), tensor(next), scalar(composer.word("momentum"))}, {same(0)});
  return after;
}

void move_statistics(Composer& composer, const Moments& moments, int64_t elements) {
  const auto& of = moments.variance.geometry;
  const View unbiased = composer.draft(of.dtype, of.sizes, Sharing::kCopies);
  composer.step("mul.Tensor", {tensor(moments.variance), wrapped(number(static_cast<double>(elements) / static_cast<double>(elements - 1)))}, {made(unbiased)});
  const View mean = moved(composer, "running_mean", moments.mean), variance = moved(composer, "running_var", unbiased);
  composer.step("copy_", {tensor(composer.view("running_mean")), tensor(mean), flag(false)}, {same(0)}).writes = true;
  composer.step("copy_", {tensor(composer.view("running_var")), tensor(variance), flag(false)}, {same(0)}).writes = true;
}

std::optional<Composition> batch_norm(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto rows = composer.rows("input");
  const auto& outputs = call.whole.outputs;
  const auto& sizes = composer.whole("input").geometry.sizes;
  if (!rows || call.rows.size() != 1 || !std::all_of(outputs.begin(), outputs.end(), is_new) || outputs.size() != 3) return std::nullopt;
  const int64_t channels = sizes[1], elements = elements_of(composer.whole("input").geometry) / std::max<int64_t>(channels, 1);
  if (outputs[1].geometry.sizes != std::vector<int64_t>{channels} || outputs[2].geometry.sizes != outputs[1].geometry.sizes || elements < 2) return std::nullopt;
  const auto normalised = composer.result_rows(0, *rows);
  if (!normalised) return std::nullopt;
  const size_t eps = composer.word_of("eps");
  composer.fits([eps](const wire::Words& words) { return wire::bits_value(words[eps]) > 0; });
  const View input = composer.view("input"), mean = composer.result(1, Sharing::kCopies), inverse = composer.result(2, Sharing::kCopies);
  const auto of_all = moments_of(composer, input, outputs[1].geometry.dtype, channels, mean);
  const View widened = composer.draft(outputs[1].geometry.dtype, {channels}, Sharing::kCopies);
  composer.step("add.Tensor", {tensor(of_all.variance), wrapped(composer.word("eps")), scalar(number(1))}, {made(widened)});
  composer.step("rsqrt", {tensor(widened)}, {made(inverse)});
  composer.step("native_batch_norm",
                {tensor(input), composer.given("weight"), composer.given("bias"), tensor(mean), tensor(of_all.variance), flag(false), real(number(0)), real(composer.word("eps"))},
                {made(*normalised), nothing(), nothing()});
  if (composer.has("running_mean") && composer.has("running_var")) move_statistics(composer, of_all, elements);
  return composer.take();
}

// With the whole's mean and scale a device's own sums are its part of the weight's and bias' gradients. The input's is
// w s (dy - sum(dy)/n - (x - mean) s² sum(dy (x - mean))/n) with s = 1/deviation: the last two terms are a batch norm by given statistics.
std::optional<Composition> batch_norm_backward(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto rows = composer.rows("input"), gradient_rows = composer.rows("grad_out");
  const auto& outputs = call.whole.outputs;
  const auto& mean = composer.whole("save_mean").geometry;
  if (!rows || !gradient_rows || call.rows.size() != 2 || outputs.size() != 3 || !is_new(outputs[0]) || is_new(outputs[1]) != is_new(outputs[2])) return std::nullopt;
  if (!composer.has("save_mean") || !composer.has("save_invstd")) return std::nullopt;
  const auto result = composer.result_rows(0, *rows);
  if (!result) return std::nullopt;
  const int64_t channels = mean.sizes.at(0), elements = elements_of(composer.whole("input").geometry) / std::max<int64_t>(channels, 1);
  const uint8_t dtype = mean.dtype;
  const auto sum = [&](size_t output) { return is_new(outputs[output]) ? composer.result(output, Sharing::kSum) : composer.draft(dtype, {channels}, Sharing::kSum); };
  const View of_weight = sum(1), of_bias = sum(2), input = composer.view("input"), inverse = composer.view("save_invstd");
  composer.step("native_batch_norm_backward",
                {tensor(composer.view("grad_out")), tensor(input), composer.given("weight"), composer.given("running_mean"), composer.given("running_var"),
                 tensor(composer.view("save_mean")), tensor(inverse), flag(true), real(composer.word("eps")), flags({0, 1, 1})},
                {nothing(), made(of_weight), made(of_bias)});
  const size_t summed = composer.steps();
  View scale = inverse;
  if (composer.has("weight")) {
    scale = composer.draft(dtype, {channels}, Sharing::kCopies);
    composer.step("mul.Tensor", {tensor(inverse), tensor(composer.view("weight"))}, {made(scale)});
  }
  const View zeros = composer.draft(dtype, {channels}, Sharing::kCopies, /*from_zeros=*/true);
  const View slope = composer.draft(dtype, {channels}, Sharing::kCopies), shift = composer.draft(dtype, {channels}, Sharing::kCopies);
  const Source share = number(-1.0 / static_cast<double>(elements));
  composer.step("addcmul", {tensor(zeros), tensor(scale), tensor(of_weight), scalar(share)}, {made(slope)});
  composer.step("mul_.Tensor", {tensor(slope), tensor(inverse)}, {same(0)});
  composer.step("addcmul", {tensor(zeros), tensor(scale), tensor(of_bias), scalar(share)}, {made(shift)});
  composer.step("native_batch_norm",
                {tensor(input), tensor(slope), tensor(shift), tensor(composer.view("save_mean")), tensor(zeros), flag(false), real(number(0)), real(number(1))},
                {made(*result), nothing(), nothing()});
  View spread = scale;
  spread.geometry.sizes.assign(input.geometry.sizes.size(), 1);
  spread.geometry.strides.assign(input.geometry.sizes.size(), 1);
  spread.geometry.sizes[1] = channels;
  spread.geometry.strides[0] = channels;
  composer.step("addcmul_", {tensor(*result), tensor(composer.view("grad_out")), tensor(spread), scalar(number(1))}, {same(0)});
  composer.sum_before(summed, {*of_weight.made, *of_bias.made});
  return composer.take();
}

// Whether it is a batch norm whose statistics are those of its rows.
bool takes_statistics(const wire::Template& call, const c10::OperatorHandle& op, const std::string& name) {
  if (name.find("batch_norm") == std::string::npos) return false;
  for (const char* flag : {"training", "train"}) {
    const auto place = op.schema().argumentIndexWithName(flag);
    if (place) return call.arguments[static_cast<size_t>(*place)].flag;
  }
  return false;
}

// Rows lie apart from the channels.
bool rows_beside_channels(StrategyDraft& draft) {
  for (const char* name : {"input", "grad_out"}) {
    if (draft.is_tensor(name)) draft.label(name, all_but({1}, draft.rank(name)));
  }
  return true;
}

// Means that divide by a count of their own.

bool is_mean(const wire::Template& call, const c10::OperatorHandle& op) {
  const auto place = op.schema().argumentIndexWithName("reduction");
  return place && call.arguments[static_cast<size_t>(*place)].integer == at::Reduction::Mean;
}

// A mean over the classes' weights: both sums are made of the devices', and then divided. In half precision the sum could overflow where the mean does not.
std::optional<Composition> mean_of_classes(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto& outputs = call.whole.outputs;
  if (outputs.size() != 2 || !is_new(outputs[0]) || !is_new(outputs[1])) return std::nullopt;
  const uint8_t dtype = outputs[0].geometry.dtype;
  if (static_cast<c10::ScalarType>(dtype) == c10::ScalarType::Half) return std::nullopt;
  auto given = composer.local_arguments();
  given[composer.place_of("reduction")].argument.integer = at::Reduction::Sum;
  const View sum = composer.draft(dtype, {}, Sharing::kSum), weight = composer.result(1, Sharing::kSum), mean = composer.result(0, Sharing::kCopies);
  composer.step(composer.own(), std::move(given), {made(sum), made(weight)});
  composer.step("div.Tensor", {tensor(sum), tensor(weight)}, {made(mean)}).sums = {*sum.made, *weight.made};
  return composer.take();
}

bool rows_beside_classes(StrategyDraft& draft) {
  const size_t rank = draft.rank("self");
  if (rank < 2 || draft.rank("target") + 1 != rank) return false;
  Labels rows = all_but({1}, rank);
  draft.label("self", rows);
  rows.erase(rows.begin() + 1);
  draft.label("target", rows);
  return true;
}

// Each device divides by the number of its own elements, which are so many times fewer: so the gradient that comes in is divided as well.
std::optional<Composition> gradient_of_mean(const DividedCall& call, Gang& gang, const Device&) {
  Composer composer(call, gang);
  const auto& outputs = call.whole.outputs;
  const auto& incoming = composer.whole("grad_output").geometry;
  const auto rows = composer.rows("self") ? composer.rows("self") : composer.rows("target");
  if (!rows || elements_of(incoming) != 1 || outputs.size() != 1 || composer.whole("self").geometry.sizes != composer.whole("target").geometry.sizes) return std::nullopt;
  const View share = composer.draft(incoming.dtype, incoming.sizes, Sharing::kCopies);
  composer.step("div.Tensor", {tensor(composer.view("grad_output")), wrapped(number(static_cast<double>(composer.devices())))}, {made(share)});
  auto given = composer.local_arguments();
  given[composer.place_of("grad_output")] = tensor(share);
  if (is_new(outputs[0])) {
    const auto result = composer.result_rows(0, *rows);
    if (!result) return std::nullopt;
    composer.step(composer.own(), std::move(given), {made(*result)});
  } else {
    composer.step(composer.own(), std::move(given), {same(outputs[0].same)}).writes = true;
  }
  return composer.take();
}

constexpr std::array<std::string_view, 2> kMeansOfClasses{"nll_loss_forward", "nll_loss2d_forward"};
constexpr std::array<std::string_view, 4> kGradientsOfMeans{"binary_cross_entropy_backward", "huber_loss_backward", "mse_loss_backward", "smooth_l1_loss_backward"};

// Which dimensions of a call may be divided, and what carries it out then.
struct Recipe {
  StrategyRule rule = nullptr;
  std::optional<Composition> (*compose)(const DividedCall& call, Gang& gang, const Device& device) = nullptr;
};

Recipe recipe_for(const wire::Template& call, const c10::OperatorHandle& op) {
  const std::string name = name_of(op);
  if (name == "native_dropout") return {elementwise, dropout};
  if (is_among(kFills, name)) return {elementwise, fill};
  if (is_among(kDraws, name)) return {elementwise, draw};
  if (takes_statistics(call, op, name)) return {rows_beside_channels, name.ends_with("backward") ? batch_norm_backward : batch_norm};
  if (is_mean(call, op) && is_among(kMeansOfClasses, name)) return {rows_beside_classes, mean_of_classes};
  if (is_mean(call, op) && is_among(kGradientsOfMeans, name)) return {elementwise, gradient_of_mean};
  return {};
}

}  // namespace

bool is_composed(const wire::Template& call, const c10::OperatorHandle& op) { return recipe_for(call, op).rule != nullptr; }

std::optional<Strategy> strategy_of_composed(const wire::Template& call, const c10::OperatorHandle& op) {
  const StrategyRule rule = recipe_for(call, op).rule;
  StrategyDraft draft(call, op);
  if (rule == nullptr || !rule(draft)) return std::nullopt;
  return draft.take();
}

std::optional<Composition> composition_of(const DividedCall& call, Gang& gang, const Device& device) { return recipe_for(call.whole, call.op).compose(call, gang, device); }

wire::Words Composition::words_of(const Step& step, const Use& use) const {
  wire::Words words;
  for (const auto& source : step.words) words.push_back(source(use));
  return words;
}

int64_t Composition::bytes(int64_t devices) const {
  return std::accumulate(made.begin(), made.end(), int64_t{0}, [&](int64_t sum, const Made& one) { return sum + one.placement.bytes_of(one.bytes, devices); });
}

std::vector<uint64_t> Composition::ids(const std::vector<uint64_t>& results, const Storages& storages) const {
  std::vector<uint64_t> ids;
  uint64_t draft = std::numeric_limits<uint64_t>::max();
  const auto is_taken = [&](uint64_t id) { return storages.has(id) || std::find(results.begin(), results.end(), id) != results.end(); };
  for (const auto& one : made) {
    if (!one.result) {
      while (is_taken(draft)) --draft;
    }
    ids.push_back(one.result ? results[*one.result] : draft--);
  }
  return ids;
}

}  // namespace forebay::worker
