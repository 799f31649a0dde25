#include "tier2/library_executor.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "base/clock.h"
#include "base/settings.h"
#include "tier2/proof.h"

namespace forebay::worker {

namespace {

const std::string kRunningSegment = "a compiled segment";

// Removes the last result, in which a library says whether indices that it computed are out of bounds. Throws std::runtime_error if it is missing.
bool take_out_of_bounds(const Specialization& specialization, std::vector<at::Tensor>& results) {
  if (!specialization.reports_out_of_bounds()) return false;
  const bool reports = !results.empty() && results.back().defined() && results.back().is_cpu() && results.back().scalar_type() == at::kLong && results.back().numel() == 1;
  if (!reports) throw std::runtime_error("it does not tell whether its indices lead anywhere");
  const bool is_out_of_bounds = *results.back().const_data_ptr<int64_t>() != 0;
  results.pop_back();
  return is_out_of_bounds;
}

// Thread CPU time for one thread, which other load barely affects; wall-clock time for several.
double kernel_seconds(int threads) {
  if (threads == 1) return processor_seconds();
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// While it lives, kernels take so many threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()) { set_kernel_threads(threads); }
  ~WithThreads() { set_kernel_threads(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const int before_;
};

// Whether the steps are calls of the same operators, and bind as many words of the same kinds: they may differ in sizes and other numbers.
bool are_alike(const Path& path, const Path& other, const std::vector<std::unique_ptr<Plan>>& plans) {
  const auto is_same_kind = [](const wire::Slot& slot, const wire::Slot& same) { return slot.kind == same.kind; };
  return std::equal(path.begin(), path.end(), other.begin(), other.end(), [&](const wire::Step* step, const wire::Step* same) {
    const bool allocates = wire::is_allocation(step->key);
    if (allocates != wire::is_allocation(same->key)) return false;
    if (!allocates && !(plans[wire::key_value(step->key)]->op == plans[wire::key_value(same->key)]->op)) return false;
    return std::equal(step->slots.begin(), step->slots.end(), same->slots.begin(), same->slots.end(), is_same_kind);
  });
}

// Whether the results are what the segment makes, by their geometry.
bool are_results(const Candidate& candidate, const std::vector<at::Tensor>& results) {
  size_t next = 0;
  const auto is_next = [&](const Layout& layout) {
    if (next == results.size()) return false;
    const auto& result = results[next++];
    return result.defined() && result.device().is_cpu() && result.scalar_type() == layout.dtype && result.sizes() == c10::IntArrayRef(layout.sizes);
  };
  for (const auto& place : candidate.specialization().places()) {
    if (place.is_output() && !is_next(*place.layout)) return false;
  }
  for (const auto& window : candidate.specialization().windows()) {
    if (window.is_output && !is_next(*window.layout)) return false;
  }
  return next == results.size();
}

}  // namespace

void LibraryExecutor::prepare(Candidate& candidate, const Candidates& all) {
  describe(candidate, all);
  if (candidate.is_steady()) settle(candidate, all);
  switch (candidate.state()) {
    case Candidate::State::kVerifying:
      return verify(candidate);
    case Candidate::State::kServing:
      return static_cast<void>(run(candidate));
    default:
      replay(candidate);
  }
}

// It may be found that numbers change which did not so far: then it is described anew, once.
void LibraryExecutor::settle(Candidate& candidate, const Candidates& all) {
  if (candidate.is_described()) find_library_(candidate.number());
  if (candidate.state() == Candidate::State::kDescribing) {
    describe(candidate, all);
    if (candidate.is_described()) find_library_(candidate.number());
  }
  candidate.sought();
}

void LibraryExecutor::describe(Candidate& candidate, const Candidates& all) {
  const auto& plans = context_.templates.plans();
  std::vector<const Specialization*> alike;
  for (const auto& other : all) {
    if (other->is_described() && are_alike(candidate.path(), other->path(), plans)) alike.push_back(&other->specialization());
  }
  try {
    Specialization specialization(candidate.path(), plans, context_.storages, context_.templates.layouts(), alike, candidate.changing());
    auto description = specialization.description(candidate.path(), plans);
    candidate.describe(std::move(specialization));
    offers_.push_back(SegmentDescribed{candidate.number(), std::string(description.begin(), description.end()), candidate.is_steady()});
  } catch (const NotCompiled& reason) {
    candidate.stay(reason.what());
  }
}

bool LibraryExecutor::run(Candidate& candidate) {
  Binding binding;
  const int threads = threads_ ? threads_->most() : at::get_num_threads();
  const double begin = kernel_seconds(threads);
  const bool is_planned = candidate.by_tier_2();
  bool served = false;
  if (is_planned) {
    if (!fits(candidate, binding)) {
      replay(candidate);
      return false;
    }
    std::optional<WithThreads> changed;
    if (threads_ && candidate.threads_less()) changed.emplace(threads - *candidate.threads_less());
    served = serve(candidate, binding);
  }
  if (!served) replay(candidate);
  if (served == candidate.by_tier_2()) candidate.took(kernel_seconds(threads) - begin);
  return served;
}

bool LibraryExecutor::fits(Candidate& candidate, Binding& binding) {
  const auto failed = candidate.specialization().bind(candidate.path(), binding);
  if (failed == Specialization::GuardFailure::kNumber) candidate.widen();
  if (failed != Specialization::GuardFailure::kNone) return false;
  const auto& places = candidate.specialization().places();
  for (size_t number = 0; number < places.size(); ++number) {
    const auto& place = places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_made == context_.storages.has(id)) return false;
    if (!place.is_given) continue;
    const Entry& entry = context_.storages.at(id);
    if (entry.cause() || entry.shortfall() || entry.bytes() != place.bytes) return false;
  }
  try {
    context_.storages.check_room(candidate.specialization().made_bytes());
    candidate.specialization().check(binding, context_.storages, context_.device);
  } catch (const CommandError&) {
    return false;
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

at::Tensor LibraryExecutor::drawn(const Candidate& candidate, const Specialization::Draw& draw, const std::pair<uint64_t, uint64_t>& seed_and_counter) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Device& device = context_.device;
  if (draw.kept) {
    auto mask = at::empty_strided(draw.layout->sizes, draw.layout->strides, at::TensorOptions().dtype(at::kBool));
    mask.bernoulli_(*draw.kept, device.seeded_generator(seed_and_counter.first, seed_and_counter.second));
    return mask;
  }
  Storages apart(device);
  Caller caller(device, apart);
  wire::Words words;
  const wire::Step& step = *candidate.path()[draw.step];
  for (const auto& slot : step.slots) words.push_back(slot.last);
  Plan& plan = context_.templates.known(wire::key_value(step.key));
  apart.set_limit(draw.bytes);
  Entry& entry = apart.insert(words[draw.word], draw.bytes);
  caller.bind(plan, words);
  caller.run(plan);
  const at::Tensor& values = entry.view(device, *draw.layout, static_cast<int64_t>(words[draw.word + 1]));
  const bool is_all = values.is_contiguous() && static_cast<int64_t>(values.nbytes()) == draw.bytes;
  return is_all ? values : values.clone(at::MemoryFormat::Contiguous);
}

std::vector<at::Tensor> LibraryExecutor::inputs_of(const Candidate& candidate, const Binding& binding) {
  Tensors inputs;
  const auto& places = candidate.specialization().places();
  for (size_t number = 0; number < places.size(); ++number) {
    if (places[number].is_input) inputs.push_back(context_.storages.at(binding.ids[number]).view(context_.device, *places[number].layout, 0));
  }
  if (!binding.numbers.empty()) {
    auto numbers = at::empty({static_cast<int64_t>(binding.numbers.size())}, at::TensorOptions().dtype(at::kDouble));
    std::copy(binding.numbers.begin(), binding.numbers.end(), numbers.mutable_data_ptr<double>());
    inputs.push_back(std::move(numbers));
  }
  for (size_t index = 0; index < binding.draws.size(); ++index) inputs.push_back(drawn(candidate, candidate.specialization().draws()[index], binding.draws[index]));
  for (size_t index = 0; index < binding.offsets.size(); ++index) inputs.push_back(window_of(candidate, binding, index));
  return inputs;
}

const at::Tensor& LibraryExecutor::window_of(const Candidate& candidate, const Binding& binding, size_t window) {
  const auto& [place, layout, is_output] = candidate.specialization().windows()[window];
  return context_.storages.at(binding.ids[place]).view(context_.device, *layout, binding.offsets[window]);
}

void LibraryExecutor::reject(Candidate& candidate, const std::string& why) {
  candidate.is_shared() ? candidate.await_own("is wrong") : candidate.stay(why);
  offers_.push_back(LibraryRejected{candidate.number(), why});
}

bool LibraryExecutor::serve(Candidate& candidate, const Binding& binding) {
  Tensors inputs, results;
  try {
    inputs = inputs_of(candidate, binding);
  } catch (const std::exception&) {
    return false;  // tier 1 says what is wrong with them
  }
  try {
    const Running::Call call(context_.caller.running(), kRunningSegment);
    results = candidate.library()->run(inputs);
    if (take_out_of_bounds(candidate.specialization(), results)) {
      candidate.mismatched();
      return false;
    }
    if (!are_results(candidate, results)) throw std::runtime_error("its results have other geometries");
    settle_layouts(candidate, results);
  } catch (const std::exception& error) {
    reject(candidate, std::string("its library failed: ") + error.what());
    return false;
  }
  take_results(candidate, binding, results);
  return true;
}

void LibraryExecutor::settle_layouts(const Candidate& candidate, Tensors& results) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  auto result = results.begin();
  for (const auto& place : candidate.specialization().places()) {
    if (!place.is_output()) continue;
    const Layout& layout = *place.layout;
    const bool is_own = result->storage_offset() == 0 && result->use_count() == 1 && result->storage().use_count() == 1 &&
                        (layout.numel == 0 || result->strides() == c10::IntArrayRef(layout.strides)) &&
                        static_cast<int64_t>(result->storage().nbytes()) == place.bytes;
    if (!is_own) {
      Entry entry(place.bytes, nullptr);
      entry.touch_unwritten(context_.device);
      entry.view(context_.device, layout, 0).copy_(*result);
      *result = entry.view(context_.device, layout, 0);
    }
    ++result;
  }
}

void LibraryExecutor::take_results(const Candidate& candidate, const Binding& binding, const Tensors& results) {
  Storages& storages = context_.storages;
  const auto& places = candidate.specialization().places();
  for (size_t number = 0; number < places.size(); ++number) {
    const auto& place = places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_freed && !place.is_made) storages.free(id);
    if (place.is_freed) continue;
    if (place.is_made) storages.insert(id, place.bytes);
  }
  put_results(candidate, binding, results);
  context_.effects.commit_together(candidate.specialization().calls());
}

void LibraryExecutor::put_results(const Candidate& candidate, const Binding& binding, const Tensors& results) {
  Storages& storages = context_.storages;
  const auto& places = candidate.specialization().places();
  auto result = results.begin();
  for (size_t number = 0; number < places.size(); ++number) {
    if (!places[number].is_output()) continue;
    Entry& entry = storages.at(binding.ids[number]);
    if (entry.watch() != nullptr) entry.watch()->before_overwrite();
    entry.replace(c10::Storage(nullptr));
    entry.adopt(*result++, 0);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& windows = candidate.specialization().windows();
  for (size_t window = 0; window < windows.size(); ++window) {
    if (!windows[window].is_output) continue;
    storages.at(binding.ids[windows[window].place]).touch(context_.device);
    window_of(candidate, binding, window).copy_(*result++);
  }
}

std::string LibraryExecutor::fault_of(const Candidate& candidate, const Tensors& inputs, const Tensors& copies, const Tensors& first, const Tensors& second) {
  if (!are_results(candidate, first) || !are_results(candidate, second)) return "its results have other geometries";
  Tensors all(copies);
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  if (!are_apart(all)) return "its results share memory";
  for (size_t index = 0; index < inputs.size(); ++index) {
    if (!are_identical(inputs[index], copies[index])) return "it writes to what it is given";
  }
  return "";
}

void LibraryExecutor::verify(Candidate& candidate) {
  Binding binding;
  if (!fits(candidate, binding)) return replay(candidate);
  Tensors copies, first, second;
  std::string wrong;
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto inputs = inputs_of(candidate, binding);
    for (const auto& input : inputs) copies.push_back(at::empty_strided(input.sizes(), input.strides(), input.options()).copy_(input));
    first = candidate.library()->run(copies);
    second = candidate.library()->run(copies);
    const bool is_out_of_bounds = take_out_of_bounds(candidate.specialization(), first), again = take_out_of_bounds(candidate.specialization(), second);
    if (is_out_of_bounds && again) {
      candidate.mismatched();
      return replay(candidate);
    }
    wrong = fault_of(candidate, inputs, copies, first, second);
  } catch (const c10::OutOfMemoryError&) {
    return replay(candidate);  // there is no room for copies: the next time, perhaps
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  replay(candidate);
  if (context_.effects.stopped()) return;
  if (wrong.empty()) wrong = difference(candidate, binding, copies, {first, second});
  if (!wrong.empty()) return reject(candidate, "its library is wrong: " + wrong);
  if (candidate.keeps_library_results()) {
    settle_layouts(candidate, first);
    put_results(candidate, binding, first);
  }
  candidate.verified();
}

std::string LibraryExecutor::difference(Candidate& candidate, const Binding& binding, const Tensors& inputs, const std::vector<Tensors>& found) {
  Tensors expected;
  const auto& places = candidate.specialization().places();
  for (size_t number = 0; number < places.size(); ++number) {
    if (places[number].is_output()) expected.push_back(context_.storages.at(binding.ids[number]).view(context_.device, *places[number].layout, 0));
  }
  for (size_t window = 0; window < binding.offsets.size(); ++window) {
    if (candidate.specialization().windows()[window].is_output) expected.push_back(window_of(candidate, binding, window));
  }
  Proof proof({candidate.specialization(), binding, candidate.path(), context_.templates.plans(), context_.device}, *candidate.library(), inputs, std::move(expected));
  for (const auto& results : found) {
    if (auto differs = proof.difference(results); !differs.empty()) return differs;
  }
  return "";
}

}  // namespace forebay::worker
