// A session's steps as they come again, and its segments, held back and carried out by libraries (tier 2).
#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "base/clock.h"
#include "session/session.h"
#include "tier2/proof.h"
#include "tier2/segments.h"

namespace forebay::worker {

namespace {

constexpr size_t kCallsMin = 20;
constexpr uint64_t kComingsMin = 2;           // before the one that is described
constexpr size_t kCandidatesMax = 64;         // of one session
constexpr uint64_t kEndsKept = 1024;          // of segments, until a candidate that is none of them makes room for another
constexpr auto kHoldingMax = std::chrono::milliseconds(50);  // that the program pauses
constexpr int kQuietParts = 3, kParts = 4;  // of the time in which steps are gathered, in which they are not read
const std::string kRunningSegment = "a compiled segment";

// Takes what a library tells behind its results: whether indices that it computed lead nowhere. Throws std::runtime_error where it does not tell.
bool take_astray(const Outline& outline, std::vector<at::Tensor>& results) {
  if (!outline.tells_astray()) return false;
  const bool tells = !results.empty() && results.back().defined() && results.back().is_cpu() && results.back().scalar_type() == at::kLong && results.back().numel() == 1;
  if (!tells) throw std::runtime_error("it does not tell whether its indices lead anywhere");
  const bool is_astray = *results.back().const_data_ptr<int64_t>() != 0;
  results.pop_back();
  return is_astray;
}

// By the time of this thread's processor, which other programs hardly lengthen; where kernels may have more threads, which this one waits for, by the
// clock.
double kernel_seconds(int threads) {
  if (threads == 1) return processor_seconds();
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Kernels take so many threads from here on. To say so makes PyTorch end threads and start others, and forget kernels that it has prepared.
void take_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

// While it lives, kernels take so many threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()) { take_threads(threads); }
  ~WithThreads() { take_threads(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const int before_;
};

size_t calls_in(const std::vector<wire::Step*>& path) {
  return static_cast<size_t>(std::count_if(path.begin(), path.end(), [](const wire::Step* step) { return !wire::is_allocation(step->key); }));
}

// Whether the steps are calls of the same operators, and bind as many words of the same kinds: they may differ in sizes and other numbers.
bool are_alike(const std::vector<wire::Step*>& path, const std::vector<wire::Step*>& other, const std::vector<std::unique_ptr<Plan>>& plans) {
  const auto is_same_kind = [](const wire::Slot& slot, const wire::Slot& same) { return slot.kind == same.kind; };
  return std::equal(path.begin(), path.end(), other.begin(), other.end(), [&](const wire::Step* step, const wire::Step* same) {
    const bool allocates = wire::is_allocation(step->key);
    if (allocates != wire::is_allocation(same->key)) return false;
    if (!allocates && !(plans[wire::key_value(step->key)]->op == plans[wire::key_value(same->key)]->op)) return false;
    return std::equal(step->slots.begin(), step->slots.end(), same->slots.begin(), same->slots.end(), is_same_kind);
  });
}

}  // namespace

void Session::follow(wire::Reader& in) { following_ = in.bounded(wire::kStepsMax, "the number of steps"); }

void Session::step(wire::Reader& in) {
  const uint64_t number = in.varint();
  wire::Step* step = number == 0 ? traces_.likely() : traces_.child(number - 1);
  if (step == nullptr) throw wire::WireError("a STEP that did not come before");
  wire::get_changes(in, step->slots.size(), changes_);
  take(*step);
}

void Session::cut(wire::Reader& in) {
  end_segment();
  if (in.u8() == 0) return;
  drop_candidates();
  traces_.clear();
}

// A step comes again, but for the changes as expected.
void Session::take(wire::Step& step) {
  const bool held = holds_back(step);
  traces_.expect(step, changes_, words_);
  if (!freed_all_ && traces_.expects_more_freed(step, freed_)) {
    const size_t told = freed_.size();
    traces_.expect_freed(step, told, freed_);
    for (size_t index = told; index < freed_.size() && !(held && !path_.empty()); ++index) storages_.free(freed_[index]);
  }
  const uint64_t key = step.key;
  traces_.take(step, words_, freed_);
  freed_.clear();
  freed_all_ = false;
  if (!note_step(&step, held)) run(key);
}

// A step came in full: its words are read.
void Session::come(uint64_t key, const std::vector<wire::Word>& kinds) {
  const wire::Step* known = traces_.find(key);
  if (known == nullptr) release();
  const bool held = known != nullptr && holds_back(*known);
  wire::Step* step = traces_.come(key, kinds, words_, freed_);
  freed_.clear();
  freed_all_ = false;
  if (!note_step(step, held)) run(key);
}

void Session::run(uint64_t key) {
  if (wire::is_allocation(key)) return allocate(words_.front(), static_cast<int64_t>(wire::key_value(key)));
  call(wire::key_value(key));
}

void Session::compile(uint64_t due_ns) {
  if (!device_.is_host() || !device_.computes() || gang_) return;
  due_ns_ = due_ns;
}

void Session::offer_leaving() {
  if (due_ns_) offers_.push_back({Offer::Kind::kLeaving, 0, ""});
}

// Where it leaves again before segments have come here, they go along as they are.
void Session::offer_brought() {
  if (due_ns_ && !along_.empty()) offers_.push_back({Offer::Kind::kBrought, 0, along_});
}

void Session::tell_forgotten(Candidate& candidate) {
  if (due_ns_) offers_.push_back({Offer::Kind::kForgotten, candidate.number(), "", candidate.give_library_away()});
}

void Session::drop_candidates() {
  for (const auto& candidate : candidates_) tell_forgotten(*candidate);
  candidates_.clear();
  by_end_.clear();
  if (threads_) threads_->forget();
  path_.clear();
  path_known_ = true;
}

// Of the candidates, or of those whose steps are held back, one that has the step behind what came of the segment: the one that came last.
Candidate* Session::going_on(const wire::Step& step, bool held) const {
  Candidate* found = nullptr;
  for (const auto& candidate : candidates_) {
    const auto& path = candidate->path();
    const bool goes_on = path.size() > path_.size() && path[path_.size()] == &step && (candidate->is_held() || !held);
    if (goes_on && (found == nullptr || found->last_end() < candidate->last_end())) found = candidate.get();
  }
  return found;
}

// Whether the step is kept back: the segment began as one that is to be carried out as a whole, and goes on so. It may go on as another one than it
// was taken for, as a loop's whose batches have several lengths.
bool Session::holds_back(const wire::Step& step) {
  if (holding_ != nullptr) {
    const bool fits = freed_.size() <= wire::kFreedKeptMax;
    if (fits && holding_->path()[path_.size()] == &step) return true;
    Candidate* const other = fits ? going_on(step, true) : nullptr;
    if (other != nullptr) {
      holding_ = other;
      return true;
    }
    if (going_on(step, false) == nullptr) holding_->strayed();
    release();
    return false;
  }
  if (!compiles() || !path_.empty() || !path_known_ || stopped_ || lost_ || timing_.is_noting()) return false;
  holding_ = going_on(step, true);
  if (holding_ == nullptr) return false;
  held_since_ = Clock::now();
  paused_before_ = 0;
  return true;
}

// The step was taken. True where it need not be carried out now.
bool Session::note_step(wire::Step* step, bool held) {
  if (!compiles()) return false;
  if (step == nullptr) path_known_ = false;
  if (path_.empty()) began_ns_ = replies_.busy_ns();
  if (path_known_) path_.push_back(step);
  if (held && path_.size() == holding_->path().size()) complete();
  return held;
}

// A program pauses from when it is asked first how long to wait for its next step.
std::optional<Clock::time_point> Session::held_until() {
  if (holding_ == nullptr) return std::nullopt;
  if (paused_before_ != path_.size()) {
    paused_before_ = path_.size();
    paused_since_ = Clock::now();
  }
  return paused_since_ + kHoldingMax;
}

std::optional<Clock::time_point> Session::quiet_until() const {
  return holding_ == nullptr ? std::nullopt : std::optional(held_since_ + holding_->gathering() * kQuietParts / kParts);
}

void Session::release_late() {
  if (holding_ == nullptr) return;
  holding_->strayed();
  release();
}

// Carries out what was held back, call by call.
void Session::release() {
  if (holding_ == nullptr) return;
  holding_ = nullptr;
  wire::Words words = std::exchange(words_, {});
  replay();
  for (const uint64_t id : freed_) storages_.free(id);
  words_ = std::move(words);
}

// The storages whose end was told before the step; of the first one that is done.
void Session::free_before(size_t index) {
  if (index == 0) return;
  for (const auto& slot : path_[index]->freed) storages_.free(slot.last);
}

// Carries out steps of the segment, call by call. What is freed before the first of them is freed.
void Session::replay(size_t begin, size_t end) {
  for (size_t index = begin; index < end; ++index) {
    if (index > begin) free_before(index);
    words_.clear();
    for (const auto& slot : path_[index]->slots) words_.push_back(slot.last);
    run(path_[index]->key);
  }
}

// All steps of the segment are there, held back.
void Session::complete() {
  Candidate& candidate = *std::exchange(holding_, nullptr);
  candidate.gathered(Clock::now() - held_since_);
  if (device_.has_graphs()) return complete_by_graphs(candidate);
  Binding binding;
  if (candidate.state() == Candidate::State::kDescribing) {
    describe(candidate);
    return replay();
  }
  const bool proves = candidate.state() == Candidate::State::kProving;
  const int threads = threads_ ? threads_->most() : at::get_num_threads();
  const double begin = kernel_seconds(threads);
  if (proves || candidate.by_tier_2()) {
    if (!fits(candidate, binding)) return replay();
    if (proves) return prove(candidate, binding);
    std::optional<WithThreads> changed;
    if (threads_ && candidate.threads_less()) changed.emplace(threads - *candidate.threads_less());
    planned_ = serve(candidate, binding);
  }
  if (!planned_) replay();
  if (planned_ == candidate.by_tier_2()) candidate.took(kernel_seconds(threads) - begin);
}

void Session::describe(Candidate& candidate) {
  std::vector<const Outline*> alike;
  for (const auto& other : candidates_) {
    if (other->is_described() && are_alike(path_, other->path(), plans_)) alike.push_back(&other->outline());
  }
  try {
    Outline outline(path_, plans_, storages_, layouts_, alike, candidate.changing());
    auto description = outline.description(path_, plans_);
    candidate.describe(std::move(outline));
    offers_.push_back({Offer::Kind::kSegment, candidate.number(), std::string(description.begin(), description.end())});
  } catch (const NotCompiled& reason) {
    candidate.stay(reason.what());
  }
}

// Whether the library may compute from what is there, as far as can be seen. Where not, tier 1 says what is wrong, if anything is.
bool Session::fits(Candidate& candidate, Binding& binding) {
  const auto misfit = candidate.outline().bind(path_, binding);
  if (misfit == Outline::Misfit::kNumber) candidate.widen();
  if (misfit != Outline::Misfit::kNone) return false;
  const auto& places = candidate.outline().places();
  for (size_t number = 0; number < places.size(); ++number) {
    const auto& place = places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_made == storages_.has(id)) return false;
    if (!place.is_given) continue;
    const Entry& entry = storages_.at(id);
    if (entry.cause() || entry.shortfall() || entry.bytes() != place.bytes) return false;
  }
  try {
    storages_.check_room(candidate.outline().made_bytes());
    candidate.outline().check(binding, storages_, device_);
  } catch (const CommandError&) {
    return false;
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

// What tier 1 would draw. Throws what its call would.
at::Tensor Session::drawn(const Outline::Draw& draw, const std::pair<uint64_t, uint64_t>& seed_and_counter) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (draw.kept) {
    auto mask = at::empty_strided(draw.layout->sizes, draw.layout->strides, at::TensorOptions().dtype(at::kBool));
    mask.bernoulli_(*draw.kept, device_.seeded_generator(seed_and_counter.first, seed_and_counter.second));
    return mask;
  }
  Storages apart(device_);
  Caller caller(device_, apart);
  wire::Words words;
  for (const auto& slot : path_[draw.step]->slots) words.push_back(slot.last);
  Plan& plan = *plans_[wire::key_value(path_[draw.step]->key)];
  apart.set_limit(draw.bytes);
  Entry& entry = apart.insert(words[draw.word], draw.bytes);
  caller.bind(plan, words);
  caller.run(plan);
  const at::Tensor& values = entry.view(device_, *draw.layout, static_cast<int64_t>(words[draw.word + 1]));
  const bool is_all = values.is_contiguous() && static_cast<int64_t>(values.nbytes()) == draw.bytes;
  return is_all ? values : values.clone(at::MemoryFormat::Contiguous);
}

std::vector<at::Tensor> Session::library_inputs(const Candidate& candidate, const Binding& binding) {
  std::vector<at::Tensor> inputs;
  const auto& places = candidate.outline().places();
  for (size_t number = 0; number < places.size(); ++number) {
    if (places[number].is_input) inputs.push_back(storages_.at(binding.ids[number]).view(device_, *places[number].layout, 0));
  }
  if (!binding.numbers.empty()) {
    auto numbers = at::empty({static_cast<int64_t>(binding.numbers.size())}, at::TensorOptions().dtype(at::kDouble));
    std::copy(binding.numbers.begin(), binding.numbers.end(), numbers.mutable_data_ptr<double>());
    inputs.push_back(std::move(numbers));
  }
  for (size_t index = 0; index < binding.draws.size(); ++index) inputs.push_back(drawn(candidate.outline().draws()[index], binding.draws[index]));
  for (size_t index = 0; index < binding.offsets.size(); ++index) {
    inputs.push_back(windowed(candidate, binding, index));
  }
  return inputs;
}

const at::Tensor& Session::windowed(const Candidate& candidate, const Binding& binding, size_t window) {
  const auto& [place, layout, is_output] = candidate.outline().windows()[window];
  return storages_.at(binding.ids[place]).view(device_, *layout, binding.offsets[window]);
}

void Session::bar(Candidate& candidate, const std::string& why) {
  candidate.is_shared() ? candidate.await_own("is wrong") : candidate.stay(why);
  offers_.push_back({Offer::Kind::kBarred, candidate.number(), why});
}

// Whether the results are what the segment makes, by their geometry.
bool Session::are_results(const Candidate& candidate, const std::vector<at::Tensor>& results) const {
  size_t next = 0;
  const auto is_next = [&](const Layout& layout) {
    if (next == results.size()) return false;
    const auto& result = results[next++];
    return result.defined() && result.device().is_cpu() && result.scalar_type() == layout.dtype && result.sizes() == c10::IntArrayRef(layout.sizes);
  };
  for (const auto& place : candidate.outline().places()) {
    if (place.is_output() && !is_next(*place.layout)) return false;
  }
  for (const auto& window : candidate.outline().windows()) {
    if (window.is_output && !is_next(*window.layout)) return false;
  }
  return next == results.size();
}

// False where tier 1 has to carry it out: then nothing has changed.
bool Session::serve(Candidate& candidate, const Binding& binding) {
  std::vector<at::Tensor> inputs, results;
  try {
    inputs = library_inputs(candidate, binding);
  } catch (const std::exception&) {
    return false;  // tier 1 says what is wrong with them
  }
  try {
    const Running::Call call(caller_.running(), kRunningSegment);
    results = candidate.library().run(inputs);
    if (take_astray(candidate.outline(), results)) {
      candidate.strayed();
      return false;
    }
    if (!are_results(candidate, results)) throw std::runtime_error("its results have other geometries");
    settle_layouts(candidate, results);
  } catch (const std::exception& error) {
    bar(candidate, std::string("its library failed: ") + error.what());
    return false;
  }
  take_results(candidate, binding, results);
  return true;
}

// Copies results whose strides or storages are not the session's.
void Session::settle_layouts(const Candidate& candidate, std::vector<at::Tensor>& results) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  auto result = results.begin();
  for (const auto& place : candidate.outline().places()) {
    if (!place.is_output()) continue;
    const Layout& layout = *place.layout;
    const bool is_own = result->storage_offset() == 0 && result->use_count() == 1 && result->storage().use_count() == 1 &&
                        (layout.numel == 0 || result->strides() == c10::IntArrayRef(layout.strides)) &&
                        static_cast<int64_t>(result->storage().nbytes()) == place.bytes;
    if (!is_own) {
      Entry entry(place.bytes, nullptr);
      entry.touch_unwritten(device_);
      entry.view(device_, layout, 0).copy_(*result);
      *result = entry.view(device_, layout, 0);
    }
    ++result;
  }
}

// From here on nothing fails.
void Session::take_results(const Candidate& candidate, const Binding& binding, const std::vector<at::Tensor>& results) {
  const auto& places = candidate.outline().places();
  auto result = results.begin();
  for (size_t number = 0; number < places.size(); ++number) {
    const auto& place = places[number];
    const uint64_t id = binding.ids[number];
    if (place.is_freed && !place.is_made) storages_.free(id);
    if (place.is_freed) continue;
    if (place.is_made) storages_.insert(id, place.bytes);
    if (!place.is_output()) continue;
    Entry& entry = storages_.at(id);
    entry.replace(c10::Storage(nullptr));
    entry.adopt(*result++, 0);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& windows = candidate.outline().windows();
  for (size_t window = 0; window < windows.size(); ++window) {
    if (!windows[window].is_output) continue;
    storages_.at(binding.ids[windows[window].place]).touch(device_);
    windowed(candidate, binding, window).copy_(*result++);
  }
  sequence_ += candidate.outline().calls();
}

// The library computes from copies, twice, and then tier 1 carries the segment out, as ever.
void Session::prove(Candidate& candidate, const Binding& binding) {
  std::vector<at::Tensor> copies, first, second;
  std::string wrong;
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto inputs = library_inputs(candidate, binding);
    for (const auto& input : inputs) copies.push_back(at::empty_strided(input.sizes(), input.strides(), input.options()).copy_(input));
    first = candidate.library().run(copies);
    second = candidate.library().run(copies);
    const bool is_astray = take_astray(candidate.outline(), first), again = take_astray(candidate.outline(), second);
    if (is_astray && again) {
      candidate.strayed();
      return replay();
    }
    if (!are_results(candidate, first) || !are_results(candidate, second)) wrong = "its results have other geometries";
    std::vector<at::Tensor> all(copies);
    all.insert(all.end(), first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    if (wrong.empty() && !are_apart(all)) wrong = "its results share memory";
    for (size_t index = 0; index < inputs.size() && wrong.empty(); ++index) {
      if (!are_identical(inputs[index], copies[index])) wrong = "it writes to what it is given";
    }
  } catch (const c10::OutOfMemoryError&) {
    return replay();  // there is no room for copies: the next time, perhaps
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  replay();
  if (stopped_) return;
  if (wrong.empty()) wrong = difference(candidate, binding, copies, {first, second});
  if (!wrong.empty()) return bar(candidate, "its library is wrong: " + wrong);
  candidate.proved();
}

// What differs from what tier 1 has made of the inputs; empty where nothing does.
std::string Session::difference(Candidate& candidate, const Binding& binding, const std::vector<at::Tensor>& inputs, const std::vector<std::vector<at::Tensor>>& found) {
  std::vector<at::Tensor> expected;
  const auto& places = candidate.outline().places();
  for (size_t number = 0; number < places.size(); ++number) {
    if (places[number].is_output()) expected.push_back(storages_.at(binding.ids[number]).view(device_, *places[number].layout, 0));
  }
  for (size_t window = 0; window < binding.offsets.size(); ++window) {
    if (candidate.outline().windows()[window].is_output) expected.push_back(windowed(candidate, binding, window));
  }
  Proof proof({candidate.outline(), binding, path_, plans_, device_}, candidate.library(), inputs, std::move(expected));
  for (const auto& results : found) {
    if (auto differs = proof.difference(results); !differs.empty()) return differs;
  }
  return "";
}

void Session::end_segment() {
  if (holding_ != nullptr) holding_->strayed();
  release();
  if (compiles() && path_known_ && !path_.empty()) {
    note_end();
    choose_threads();
  }
  path_.clear();
  path_known_ = true;
  planned_ = false;
  traces_.cut();
}

// The one that came longest ago goes, as where a notebook has another loop by now; false where all came lately.
bool Session::make_room_for_candidate() {
  if (candidates_.size() < kCandidatesMax) return true;
  const auto oldest = std::min_element(candidates_.begin(), candidates_.end(), [](const auto& one, const auto& other) { return one->last_end() < other->last_end(); });
  Candidate& candidate = **oldest;
  if (ends_ - candidate.last_end() < kEndsKept) return false;
  tell_forgotten(candidate);
  by_end_.erase(candidate.path().back());
  candidates_.erase(oldest);
  return true;
}

void Session::note_end() {
  ++ends_;
  wire::Step* const end = path_.back();
  const auto found = by_end_.find(end);
  if (found == by_end_.end()) {
    if (end->ended + 1 < kComingsMin || calls_in(path_) < kCallsMin || !make_room_for_candidate()) return;
    candidates_.push_back(std::make_unique<Candidate>(++last_candidate_, path_));
    by_end_.emplace(end, candidates_.back().get());
    candidates_.back()->ended_at(ends_);
    return;
  }
  Candidate& candidate = *found->second;
  candidate.ended_at(ends_);
  if (due_ns_ && candidate.is_due(replies_.busy_ns() - began_ns_, *due_ns_)) offers_.push_back({Offer::Kind::kDue, candidate.number(), ""});
  if (candidate.bounds_turn()) settle();  // or a turn's time would not be that of its work
  const auto now = Clock::now();
  const auto before = std::exchange(candidate_ended_, now);
  candidate.came(now, device_.is_host() ? before : std::nullopt, candidate.by_tier_2() == planned_);
  if (const auto why = candidate.take_declined()) offers_.push_back({Offer::Kind::kDeclined, candidate.number(), *why});
  if (const auto verdict = candidate.take_verdict()) offers_.push_back({Offer::Kind::kTimed, candidate.number(), verdict->takes ? std::to_string(*verdict->takes) : ""});
  prove_arrived(candidate);
}

// A library is held against tier 1 when that has as many threads as it is quicker with; one that gained in a session before, at once.
void Session::prove_arrived(Candidate& candidate) {
  if (candidate.state() != Candidate::State::kArrived) return;
  if (threads_ && !candidate.gained_before() && !threads_->is_settled(*candidate.path().back())) return;
  candidate.prove(threads_.has_value());
}

// Of what comes next.
void Session::choose_threads() {
  if (!threads_) return;
  const wire::Step& end = *path_.back();
  const auto found = by_end_.find(&end);
  Candidate* const candidate = found == by_end_.end() ? nullptr : found->second;
  auto by = Threads::By::kSteps;
  if (candidate != nullptr) {
    if (candidate->is_being_made()) by = Threads::By::kStepsBesideCompiler;
    if (candidate->is_compared()) by = Threads::By::kCompared;
    if (candidate->state() == Candidate::State::kServing) by = Threads::By::kLibrary;
  }
  const std::chrono::nanoseconds worked(replies_.busy_ns());
  int threads = threads_->ended(end, by, Clock::now(), worked);
  if (candidate != nullptr && candidate->threads_less() && threads_->expects(end)) threads = threads_->most() - *candidate->threads_less();
  take_threads(threads);
}

void Session::take_library(uint64_t number, std::shared_ptr<Library> library, const std::string& note, bool is_shared, std::optional<double> took) {
  for (const auto& candidate : candidates_) {
    if (candidate->number() != number) continue;
    candidate->take(library, note, is_shared, took);
    prove_arrived(*candidate);
  }
}

void Session::widen_segment(uint64_t number, const WordPlaces& changing) {
  for (const auto& candidate : candidates_) {
    if (candidate->number() == number) candidate->widen(changing);
  }
}

void Session::refuse_library(uint64_t number, const std::string& why) {
  for (const auto& candidate : candidates_) {
    if (candidate->number() == number && candidate->state() == Candidate::State::kAwaiting) candidate->stay(why);
  }
}

// How the segment that ends with the step is carried out, and why not better where the program wants that.
wire::Standing Session::standing_of(const wire::Step& end, uint64_t calls) const {
  wire::Standing standing;
  standing.tier = end.ended > 1 ? 1 : 0;
  const auto found = by_end_.find(&end);
  if (!wants_libraries_) return standing;
  if (!compiles()) {
    standing.why = gang_ ? "no libraries are made for several devices" : "its worker makes no libraries";
  } else if (found != by_end_.end()) {
    if (found->second->state() == Candidate::State::kServing) standing.tier = 2;
    standing.why = found->second->why();
  } else if (calls < kCallsMin) {
    standing.why = "it has fewer than " + std::to_string(kCallsMin) + " calls";
  } else {
    standing.why = "it came once or twice";
  }
  return standing;
}

}  // namespace forebay::worker
