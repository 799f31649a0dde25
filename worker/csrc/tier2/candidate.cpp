#include "tier2/candidate.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace forebay::worker {

namespace {

constexpr const char* kBeforeTiming = "tier 1 is timed with all threads and with one less, before its library is";
constexpr const char* kBeforeImage = "its library is there, and waits for the session's next image";

// Of one whose library is compared with tier 1.
uint64_t times_left(int left) { return static_cast<uint64_t>(std::max(left, 1)); }

}  // namespace

void Candidate::describe(Specialization specialization) {
  specialization_ = std::move(specialization);
  move(SegmentEvent::kDescribed);
  due_ = false;
  why_ = "no library was made of it yet";
}

void Candidate::widen(WordPlaces changing) {
  if (state_ != State::kAwaiting) return;
  changing_ = std::move(changing);
  specialization_.reset();
  move(SegmentEvent::kWidened);
}

bool Candidate::is_due(uint64_t took_ns, uint64_t due_ns) {
  took_ns_ += took_ns;
  if (state_ == State::kAwaiting) note_work(took_ns);
  if (due_ || state_ != State::kAwaiting || took_ns_ < due_ns) return false;
  why_ = is_steady() ? "its library is made when its host has a processor to spare" : "its library is being made";
  return due_ = true;
}

void Candidate::take(std::shared_ptr<Library> library, std::string note, bool is_shared, std::optional<double> took) {
  if (state_ != State::kAwaiting) return;
  const bool served_before = resumed() && resumed()->course != wire::SegmentCourse::kTier1;
  if (served_before && library->name() != resumed()->library) return;
  if (is_steady() && !took && !served_before) return;  // whether it is quicker is not known
  library_ = std::move(library);
  note_ = std::move(note);
  is_shared_ = is_shared;
  gain_ = took || served_before ? std::optional(Gain{took.value_or(1), /*is_from_before=*/true}) : std::nullopt;
  move(SegmentEvent::kLibraryArrived);
  why_ = is_steady() ? kBeforeImage : kBeforeTiming;
}

void Candidate::verify(bool with_fewer) {
  timer_.begin(with_fewer ? 3 : 2);
  move(SegmentEvent::kThreadsKnown);
  verifications_left_ = kVerifications;
  why_ = "its library is being held against tier 1";
}

void Candidate::adopt() {
  const auto resumed = take_resumed();
  verify(/*with_fewer=*/false);
  if (!resumed) return;
  if (resumed->course == wire::SegmentCourse::kVerified) verifications_left_ = static_cast<int>(std::min<uint64_t>(resumed->left, kVerifications));
  if (resumed->course == wire::SegmentCourse::kLibrary) serve(SegmentEvent::kVerifiedKnown);
}

wire::ImageSegment Candidate::resumable(uint64_t end) const {
  using Course = wire::SegmentCourse;
  if (resumed()) return {end, resumed()->course, resumed()->left, resumed()->library, resumed()->pipeline};
  const std::string library = library_ ? library_->name() : "";
  switch (state_) {
    case State::kDescribing:
      return {end, Course::kUndescribed, 0, ""};
    case State::kArrived:  // it is adopted as soon as the image is there
      return {end, Course::kVerified, kVerifications, library};
    case State::kVerifying:
      if (!pipeline_.empty()) return {end, Course::kPipelineVerified, times_left(verifications_left_), "", pipeline_};
      if (served_ == 0) return {end, Course::kVerified, times_left(verifications_left_), library};
      return {end, Course::kLibrary, 0, library};
    case State::kServing:
      if (!pipeline_.empty()) return {end, Course::kPipeline, 0, "", pipeline_};
      return {end, Course::kLibrary, 0, library};
    default:
      return {end, Course::kTier1, 0, ""};
  }
}

void Candidate::await_own(const std::string& fault) {
  library_.reset();
  is_shared_ = false;
  timer_.forget();
  ended_.reset();
  gain_.reset();
  due_ = false;
  move(SegmentEvent::kShareFailed);
  why_ = "no library was made for its size alone yet, and that for several " + fault;
}

void Candidate::staged(std::vector<uint64_t> pipeline, std::optional<double> foretold) {
  const auto resumed = take_resumed();
  pipeline_ = std::move(pipeline);
  if (foretold) gain_ = Gain{*foretold, /*is_from_before=*/false};
  recorded("pipeline");
  if (!resumed || !wire::is_of_pipeline(resumed->course)) return;
  if (resumed->course == wire::SegmentCourse::kPipeline) return serve(SegmentEvent::kVerifiedKnown);
  verifications_left_ = static_cast<int>(std::min<uint64_t>(resumed->left, kVerifications));
}

void Candidate::recorded(const char* tier_2) {
  tier_2_ = tier_2;
  move(SegmentEvent::kRecorded);
  verifications_left_ = was_verified_ ? 1 : kVerifications;
  why_ = std::string("its ") + tier_2_ + " is being held against tier 1";
}

void Candidate::record_again(const std::string& why) {
  drop_graphs();
  pipeline_.clear();
  if (++graphs_.recordings >= kRecordingsMax) return stay("it was recorded again and again: " + (graphs_.why_excluded.empty() ? why : graphs_.why_excluded));
  move(SegmentEvent::kGraphsDropped);
  why_ = why;
}

void Candidate::drop_graphs() {
  if (graphs_.parts.empty()) return;
  graphs_.drop();
  timer_.forget();
  ended_.reset();
  move(SegmentEvent::kGraphsDropped);
  why_ = "its tensors were moved";
}

void Candidate::stay(std::string why) {
  move(SegmentEvent::kGivenUp);
  why_ = std::move(why);
  if (!library_) specialization_.reset();  // else it tells what changes in segments of other sizes
  library_.reset();
  pipeline_.clear();
  graphs_.drop();
}

void Candidate::verified() {
  if (--verifications_left_ > 0) return;
  was_verified_ = true;
  served_ = 0;
  ended_.reset();
  if (gain_) return serve(SegmentEvent::kVerifiedKnown);
  move(library_ ? SegmentEvent::kVerified : SegmentEvent::kGraphsVerified);
  why_ = std::string("its ") + tier_2_ + " is timed against tier 1";
}

void Candidate::serve(SegmentEvent event) {
  char text[100];
  const char* takes = is_steady() && !pipeline_.empty() ? "is foretold to take" : "takes";
  std::snprintf(text, sizeof(text), "its %s %s %.2f of the time of tier 1", tier_2_, takes, gain_->ratio);
  why_ = text + (note_.empty() ? "" : "; " + note_);
  move(event);
}

void Candidate::widen() {
  if (widenings_++ >= kWidenings) return stay("its numbers change again and again");
  library_.reset();
  is_shared_ = false;
  specialization_.reset();
  gain_.reset();
  move(SegmentEvent::kWidened);
  why_ = "numbers changed that had been constant";
}

void Candidate::ended(Clock::time_point now, std::optional<Clock::time_point> others, bool as_planned) {
  auto before = std::exchange(ended_, now);
  if (before && others) before = std::max(*before, *others);
  if (std::exchange(is_whole_, false) && as_planned) mismatches_ = 0;
  if (state_ == State::kAwaiting && before) note_period(now - *before);
  const bool is_settled = is_steady() && !pipeline_.empty();  // its results stay, and it has tier 1's own calls
  if (state_ == State::kServing && ++served_ % kVerifyEvery == 0 && !is_settled) {
    if (gain_->is_from_before && !is_steady()) {
      gain_.reset();
      move(SegmentEvent::kReconsider);
      why_ = kBeforeTiming;
      return;
    }
    move(SegmentEvent::kRecheck);
    verifications_left_ = 1;
  }
  if (state_ != State::kTiming || !as_planned || !before) return;
  if (timer_.note(std::chrono::duration<double>(now - *before).count())) decide();
}

void Candidate::gathered(Clock::duration took) {
  note_gathering(took);
  is_whole_ = true;
}

void Candidate::took(double seconds) {
  if (state_ == State::kWeighing && timer_.note(seconds)) decide();
}

void Candidate::mismatched() {
  ended_.reset();
  is_whole_ = false;
  if (++mismatches_ > kMismatchesMax && !is_steady() && state_ != State::kStaying) stay("its program pauses within it, leaves it, or computes indices that lead nowhere, too often");
}

void Candidate::decide() {
  const double ratio = timer_.ratio();
  const bool was_weighed = state_ == State::kWeighing;
  timer_.forget();
  ended_.reset();
  if (ratio > (was_weighed ? kLighter : kSlower)) {
    char text[100];
    std::snprintf(text, sizeof(text), "its %s takes %.2f of the %s of tier 1", tier_2_, ratio, was_weighed ? "working time" : "time from end to end");
    if (is_shared_) {
      decision_ = Decision{text, false, std::nullopt};
      return await_own("gains too little");
    }
    if (library_) decision_ = Decision{"", true, std::nullopt};
    return stay(text);
  }
  if (was_weighed) return move(SegmentEvent::kLighter);
  gain_ = Gain{ratio, /*is_from_before=*/false};
  if (library_) decision_ = Decision{"", true, ratio};
  serve(SegmentEvent::kQuicker);
}

}  // namespace forebay::worker
