#include "tier2/segment_tracker.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <forebay/traces_as_bytes.h>

#include "base/settings.h"
#include "tier2/graph_executor.h"
#include "tier2/library_executor.h"

namespace forebay::worker {

namespace {

constexpr size_t kCallsMin = 20;
constexpr uint64_t kRunsMin = 2;              // before the one that is described
constexpr size_t kCandidatesMax = 64;         // of one session
constexpr uint64_t kEndsKept = 1024;          // of segments, until a candidate that is none of them makes room for another
constexpr auto kDeferredMax = std::chrono::milliseconds(50);  // that the program pauses
constexpr int kQuietParts = 3, kParts = 4;  // of the time in which steps are gathered, in which they are not read

size_t calls_in(const Path& path) {
  return static_cast<size_t>(std::count_if(path.begin(), path.end(), [](const wire::Step* step) { return !wire::is_allocation(step->key); }));
}

}  // namespace

SegmentTracker::SegmentTracker(const ExecutorContext& context, Replies& replies, const Timing& timing) : context_(context), replies_(replies), timing_(timing) {
  if (context_.device.has_graphs()) executor_ = std::make_unique<GraphExecutor>(context_);
}

void SegmentTracker::compile(uint64_t due_ns, std::function<void(uint64_t)> find_library) {
  if (has_several_devices_ || !context_.device.is_host() || !context_.device.computes()) return;
  due_ns_ = due_ns;
  executor_ = std::make_unique<LibraryExecutor>(context_, threads_, offers_, [this, find_library = std::move(find_library)](uint64_t number) {
    sought_ = number;
    find_library(number);
    sought_.reset();
  });
}

void SegmentTracker::leave_to_devices(std::unique_ptr<Executor> executor) {
  has_several_devices_ = true;
  due_ns_.reset();
  executor_ = std::move(executor);
}

void SegmentTracker::settle_wish(LibraryUse use, bool shares_processors) {
  if (use_ != use) forget_candidates();
  use_ = use;
  if (threads_) at::set_num_threads(threads_->most());
  threads_.reset();
  const int threads = at::get_num_threads();
  if (use_ == LibraryUse::kAtOnce && shares_processors && takes_all_processors(threads)) threads_.emplace(threads);
}

void SegmentTracker::report_forgotten(Candidate& candidate) {
  offer_if_compiling(SegmentForgotten{candidate.number(), candidate.library()});
}

void SegmentTracker::forget_candidates() {
  for (const auto& candidate : candidates_) report_forgotten(*candidate);
  candidates_.clear();
  by_end_.clear();
}

void SegmentTracker::forget() {
  forget_candidates();
  if (executor_) executor_->forget();
  if (threads_) threads_->forget();
  path_.clear();
  path_known_ = true;
}

void SegmentTracker::drop_graphs() {
  for (const auto& candidate : candidates_) candidate->drop_graphs();
}

// Deferring.

Candidate* SegmentTracker::continuation(const wire::Step& step, bool deferred_only) const {
  Candidate* found = nullptr;
  for (const auto& candidate : candidates_) {
    const auto& path = candidate->path();
    const bool goes_on = path.size() > path_.size() && path[path_.size()] == &step && (candidate->is_deferred() || !deferred_only);
    if (goes_on && (found == nullptr || found->last_end() < candidate->last_end())) found = candidate.get();
  }
  return found;
}

// A segment may go on as another one than it was taken for, as a loop's whose batches have several lengths.
bool SegmentTracker::defers(const wire::Step& step, const wire::Words& freed) {
  if (deferring_ != nullptr) {
    const bool fits = freed.size() <= wire::kFreedKeptMax;
    if (fits && deferring_->path()[path_.size()] == &step) return true;
    Candidate* const other = fits ? continuation(step, true) : nullptr;
    if (other != nullptr) {
      deferring_ = other;
      return true;
    }
    if (continuation(step, false) == nullptr) deferring_->mismatched();
    release(freed);
    return false;
  }
  if (!compiles() || !path_.empty() || !path_known_ || !context_.effects.goes_on() || timing_.is_noting()) return false;
  deferring_ = continuation(step, true);
  if (deferring_ == nullptr) return false;
  deferred_since_ = Clock::now();
  paused_before_ = 0;
  return true;
}

bool SegmentTracker::note_step(wire::Step* step, bool is_deferred) {
  if (!compiles()) return false;
  if (step == nullptr) path_known_ = false;
  if (path_.empty()) began_ns_ = replies_.busy_ns();
  if (path_known_) path_.push_back(step);
  if (is_deferred && deferring_->is_steady()) {
    // It may be how a longer one begins. A worker that goes on from an image describes the longer one anew, and this one has its library all the same.
    const auto found = by_end_.find(step);
    if (found != by_end_.end() && found->second->is_deferred()) deferring_ = found->second;
  }
  if (is_deferred && path_.size() == deferring_->path().size()) complete();
  return is_deferred;
}

// A program pauses from when it is asked first how long to wait for its next step.
std::optional<Clock::time_point> SegmentTracker::deferred_until() {
  if (deferring_ == nullptr || deferring_->is_steady()) return std::nullopt;
  if (paused_before_ != path_.size()) {
    paused_before_ = path_.size();
    paused_since_ = Clock::now();
  }
  return paused_since_ + kDeferredMax;
}

std::optional<Clock::time_point> SegmentTracker::quiet_until() const {
  return deferring_ == nullptr ? std::nullopt : std::optional(deferred_since_ + deferring_->gathering().expected() * kQuietParts / kParts);
}

void SegmentTracker::release(const wire::Words& freed) {
  if (deferring_ == nullptr) return;
  deferring_ = nullptr;
  context_.tier1.run(path_);
  for (const uint64_t id : freed) context_.storages.free(id);
}

void SegmentTracker::abandon(const wire::Words& freed) {
  if (deferring_ != nullptr) deferring_->mismatched();
  release(freed);
}

// All steps of the segment are there, deferred.
void SegmentTracker::complete() {
  Candidate& candidate = *std::exchange(deferring_, nullptr);
  candidate.gathered(Clock::now() - deferred_since_);
  switch (candidate.state()) {
    case Candidate::State::kDescribing:
      return executor_->prepare(candidate, candidates_);
    case Candidate::State::kVerifying:
      return executor_->verify(candidate);
    default:
      by_tier_2_ = executor_->run(candidate);
  }
}

// Ends of segments.

void SegmentTracker::end(const wire::Words& freed) {
  abandon(freed);
  if (compiles() && path_known_ && !path_.empty()) {
    note_end();
    choose_threads();
  }
  path_.clear();
  path_known_ = true;
  by_tier_2_ = false;
}

bool SegmentTracker::make_room_for_candidate() {
  if (candidates_.size() < kCandidatesMax) return true;
  const auto oldest = std::min_element(candidates_.begin(), candidates_.end(), [](const auto& one, const auto& other) { return one->last_end() < other->last_end(); });
  Candidate& candidate = **oldest;
  if (ends_ - candidate.last_end() < kEndsKept) return false;
  report_forgotten(candidate);
  by_end_.erase(candidate.path().back());
  candidates_.erase(oldest);
  return true;
}

void SegmentTracker::note_end() {
  ++ends_;
  wire::Step* const end = path_.back();
  const auto found = by_end_.find(end);
  if (found != by_end_.end()) return note_candidate_end(*found->second);
  if (end->ended + 1 < kRunsMin || calls_in(path_) < kCallsMin || !make_room_for_candidate()) return;
  add_candidate(std::make_unique<Candidate>(++last_number_, path_, /*is_steady=*/use_ == LibraryUse::kMade)).ended_at(ends_);
}

Candidate& SegmentTracker::add_candidate(std::unique_ptr<Candidate> candidate) {
  by_end_.emplace(candidate->path().back(), candidate.get());
  return *candidates_.emplace_back(std::move(candidate));
}

void SegmentTracker::note_candidate_end(Candidate& candidate) {
  candidate.ended_at(ends_);
  if (due_ns_ && candidate.is_due(replies_.busy_ns() - began_ns_, *due_ns_)) {
    offers_.push_back(SegmentDue{candidate.number(), candidate.is_steady() ? std::optional(candidate.costs()) : std::nullopt});
  }
  if (candidate.state() == Candidate::State::kTiming && candidate.timer().is_bound()) context_.tier1.settle();  // or a turn's time would not be that of its work
  const auto now = Clock::now();
  const auto before = std::exchange(candidate_ended_, now);
  candidate.ended(now, context_.device.is_host() ? before : std::nullopt, candidate.by_tier_2() == by_tier_2_);
  if (const auto decision = candidate.take_decision()) {
    if (!decision->declined.empty()) offers_.push_back(LibraryDeclined{candidate.number(), decision->declined});
    if (decision->is_timed) offers_.push_back(LibraryTimed{candidate.number(), decision->ratio});
  }
  verify_arrived(candidate);
}

void SegmentTracker::verify_arrived(Candidate& candidate) {
  if (candidate.state() != Candidate::State::kArrived) return;
  if (candidate.is_steady()) {
    if (sought_ == candidate.number() && candidate.is_adopted_at_once()) candidate.adopt();
    return;
  }
  if (threads_ && !candidate.gained_before() && !threads_->is_settled(*candidate.path().back())) return;
  candidate.verify(threads_.has_value());
}

// Of what comes next.
void SegmentTracker::choose_threads() {
  if (!threads_) return;
  const wire::Step& end = *path_.back();
  const auto found = by_end_.find(&end);
  Candidate* const candidate = found == by_end_.end() ? nullptr : found->second;
  auto by = Threads::By::kSteps;
  if (candidate != nullptr) {
    if (candidate->is_being_made()) by = Threads::By::kStepsBesideCompiler;
    if (is_compared(candidate->state())) by = Threads::By::kCompared;
    if (candidate->state() == Candidate::State::kServing) by = Threads::By::kLibrary;
  }
  const std::chrono::nanoseconds worked(replies_.busy_ns());
  int threads = threads_->ended(end, by, Clock::now(), worked);
  if (candidate != nullptr && candidate->threads_less() && threads_->expects(end)) threads = threads_->most() - *candidate->threads_less();
  set_kernel_threads(threads);
}

// Images.

std::vector<wire::ImageSegment> SegmentTracker::resumable(wire::Traces& traces) const {
  std::vector<std::pair<uint64_t, wire::ImageSegment>> found;
  if (!compiles() || use_ != LibraryUse::kMade) return {};
  wire::TracesAsBytes::walk(traces, [&](uint64_t number, const Path& path) {
    const auto candidate = by_end_.find(path.back());
    if (candidate != by_end_.end()) found.emplace_back(candidate->second->last_end(), candidate->second->resumable(number));
  });
  std::sort(found.begin(), found.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<wire::ImageSegment> segments;
  for (auto& [last_end, segment] : found) segments.push_back(std::move(segment));
  return segments;
}

void SegmentTracker::resume(const std::vector<wire::ImageSegment>& segments, wire::Traces& traces) {
  std::unordered_map<uint64_t, size_t> by_number;
  for (size_t index = 0; index < segments.size(); ++index) by_number.emplace(segments[index].end, index);
  std::vector<Path> paths(segments.size());
  wire::TracesAsBytes::walk(traces, [&](uint64_t number, const Path& path) {
    const auto segment = by_number.find(number);
    if (segment != by_number.end()) paths[segment->second] = path;
  });
  for (size_t index = 0; index < segments.size() && candidates_.size() < kCandidatesMax; ++index) {
    if (paths[index].empty() || by_end_.contains(paths[index].back())) throw wire::WireError("an image of segments that did not come");
    const auto& segment = segments[index];
    std::optional<Candidate::Resumed> resumed;
    if (segment.course != wire::SegmentCourse::kUndescribed) resumed = Candidate::Resumed{segment.course, segment.left, segment.library, segment.pipeline};
    add_candidate(std::make_unique<Candidate>(++last_number_, std::move(paths[index]), /*is_steady=*/true, std::move(resumed))).ended_at(++ends_);
  }
}

void SegmentTracker::adopt_arrived() {
  for (const auto& candidate : candidates_) {
    if (candidate->is_steady() && candidate->state() == Candidate::State::kArrived) candidate->adopt();
  }
}

// What compiling processes answer.

Candidate* SegmentTracker::find(uint64_t number) const {
  const auto found = std::find_if(candidates_.begin(), candidates_.end(), [number](const auto& candidate) { return candidate->number() == number; });
  return found == candidates_.end() ? nullptr : found->get();
}

void SegmentTracker::take_library(uint64_t number, const std::shared_ptr<Library>& library, const std::string& note, bool is_shared, std::optional<double> took) {
  Candidate* const candidate = find(number);
  if (candidate == nullptr) return;
  candidate->take(library, note, is_shared, took);
  verify_arrived(*candidate);
}

void SegmentTracker::widen(uint64_t number, const WordPlaces& changing) {
  if (Candidate* const candidate = find(number)) candidate->widen(changing);
}

void SegmentTracker::refuse_library(uint64_t number, const std::string& why) {
  Candidate* const candidate = find(number);
  if (candidate != nullptr && candidate->state() == Candidate::State::kAwaiting) candidate->stay(why);
}

wire::Standing SegmentTracker::standing_of(const wire::Step& end, uint64_t calls) const {
  wire::Standing standing;
  standing.tier = end.ended > 1 ? 1 : 0;
  const auto found = by_end_.find(&end);
  if (use_ == LibraryUse::kNone) return standing;
  if (use_ == LibraryUse::kMade) {  // the program did not ask: it is told of what is there
    if (found == by_end_.end()) return standing;
    const Candidate& candidate = *found->second;
    const bool serves = candidate.state() == Candidate::State::kServing;
    if (serves) standing.tier = 2;
    if (serves || candidate.library() != nullptr) standing.why = candidate.why();
    return standing;
  }
  if (executor_ == nullptr) {
    standing.why = has_several_devices_ ? "no libraries are made for several devices" : "its worker makes no libraries";
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
