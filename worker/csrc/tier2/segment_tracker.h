// Which segments of a session repeat, and what carries each of them out.
//
// The tracker sees every step. A segment that may be carried out as a whole has its steps deferred until the last one has come; then an
// executor carries it out. If another step comes first, or none for a while, tier 1 carries out the deferred ones.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <forebay/image.h>
#include <forebay/segments.h>
#include <forebay/traces.h>
#include <forebay/wire.h>

#include "base/clock.h"
#include "base/replies.h"
#include "device/timing.h"
#include "tier2/candidate.h"
#include "tier2/executor.h"
#include "tier2/offer.h"
#include "tier2/threads.h"
#include "tier2/tier1.h"

namespace forebay::worker {

// What a program wants of libraries.
enum class LibraryUse {
  kNone,
  kMade,    // those that are there serve, and when they begin to depends on what came alone; others are made where a processor is to spare. Pipelines likewise
  kAtOnce,  // they are made while the program goes on, timed by turns, and serve where they are quicker
};

class SegmentTracker {
 public:
  SegmentTracker(const ExecutorContext& context, Replies& replies, const Timing& timing);

  // Segments may get libraries, once the device has worked so long on one; of a session that has done nothing yet.
  // `find_library` returns once it is known what becomes of the segment of this number, which was offered, and it has been told.
  void compile(uint64_t due_ns, std::function<void(uint64_t)> find_library);
  // Whether templates are to be kept as they came, for descriptions.
  bool describes() const { return due_ns_.has_value(); }
  // The session has several devices, and nothing is recorded as a graph or compiled: this carries segments out in place of that; null: tier 1 alone does.
  void leave_to_devices(std::unique_ptr<Executor> executor);
  // What the program wants. `shares_processors`: it runs on the host whose processors compute.
  void settle_wish(LibraryUse use, bool shares_processors);

  // The next step is coming; `freed`: what was freed since the step before. True if it is to be deferred.
  bool defers(const wire::Step& step, const wire::Words& freed);
  // The step has come, if it is known. True if it need not be carried out now.
  bool note_step(wire::Step* step, bool is_deferred);
  bool is_deferring() const { return deferring_ != nullptr; }
  // Steps stay deferred however long the program pauses.
  bool is_deferring_steadily() const { return deferring_ != nullptr && deferring_->is_steady(); }
  // Steps of this segment came.
  bool has_begun() const { return !path_.empty(); }
  // Carries out the deferred steps, call by call, and frees what was freed since.
  void release(const wire::Words& freed);
  // As release, of a program that pauses within the segment, or leaves it.
  void abandon(const wire::Words& freed);
  // The segment ends with the last step.
  void end(const wire::Words& freed);

  // Until when steps are deferred, if any are; then they are to be carried out.
  std::optional<Clock::time_point> deferred_until();
  // Do not poll the socket before this time: in earlier runs the remaining steps arrived later.
  std::optional<Clock::time_point> quiet_until() const;

  // What becomes of the segment of this number.
  void take_library(uint64_t number, const std::shared_ptr<Library>& library, const std::string& note, bool is_shared, std::optional<double> took);
  void refuse_library(uint64_t number, const std::string& why);
  void widen(uint64_t number, const WordPlaces& changing);
  // All steps are forgotten, and all segments with them.
  void forget();
  void drop_graphs();
  // For an image of the session, between two segments: how those of `traces` are carried out when they come next.
  std::vector<wire::ImageSegment> resumable(wire::Traces& traces) const;
  // Of a session that goes on from an image, with its steps: as the worker before this one carried them out.
  void resume(const std::vector<wire::ImageSegment>& segments, wire::Traces& traces);
  // An image is there that says what serves from here on: libraries that have arrived do, once they are verified.
  void adopt_arrived();
  // How the segment that ends with the step is carried out, and if the program wants it compiled, why not better.
  wire::Standing standing_of(const wire::Step& end, uint64_t calls) const;

  void offer(Offer offer) { offers_.push_back(std::move(offer)); }
  // As offer, where libraries are compiled.
  void offer_if_compiling(Offer offer) {
    if (due_ns_) offers_.push_back(std::move(offer));
  }
  std::vector<Offer> take_offers() { return std::exchange(offers_, {}); }
  bool has_offers() const { return !offers_.empty(); }

 private:
  bool compiles() const { return executor_ != nullptr && (use_ == LibraryUse::kAtOnce || (use_ == LibraryUse::kMade && (due_ns_ || has_several_devices_))); }
  Candidate* find(uint64_t number) const;
  // Of the candidates that have the step next, the one that came last. `deferred_only`: of those whose steps are deferred.
  Candidate* continuation(const wire::Step& step, bool deferred_only) const;
  void complete();
  void note_end();
  void note_candidate_end(Candidate& candidate);
  // False if all candidates ended lately; else the one that ended longest ago is forgotten if there are too many.
  bool make_room_for_candidate();
  Candidate& add_candidate(std::unique_ptr<Candidate> candidate);
  // Verifies a library once tier 1 has as many threads as it is quicker with; one that gained in a session before, at once.
  void verify_arrived(Candidate& candidate);
  void choose_threads();
  void report_forgotten(Candidate& candidate);
  void forget_candidates();

  const ExecutorContext context_;
  Replies& replies_;
  const Timing& timing_;
  std::unique_ptr<Executor> executor_;  // none where nothing can be compiled
  std::optional<uint64_t> due_ns_;      // where libraries are compiled: the device time that makes one worthwhile
  LibraryUse use_ = LibraryUse::kMade;
  bool has_several_devices_ = false;
  std::optional<Threads> threads_;      // where kernels take all processors of the host that the program is on, too
  std::vector<Offer> offers_;

  Path path_;                           // all steps of this segment so far; if not `path_known_`, only the first ones
  bool path_known_ = true;
  bool by_tier_2_ = false;              // an executor has carried this segment out
  uint64_t began_ns_ = 0;               // of this segment, as `busy_ns` counts

  Candidate* deferring_ = nullptr;      // whose steps, all of `path_`, are deferred; one of `candidates_`
  Clock::time_point deferred_since_{};
  Clock::time_point paused_since_{};
  size_t paused_before_ = 0;            // the step of `path_` that was waited for

  Candidates candidates_;
  std::unordered_map<const wire::Step*, Candidate*> by_end_;  // all and only `candidates_`, by their last steps
  std::optional<Clock::time_point> candidate_ended_;          // the last one that came
  uint64_t ends_ = 0;                                         // of segments, candidates or not
  uint64_t last_number_ = 0;                                  // of a candidate
  std::optional<uint64_t> sought_;                         // the candidate whose library is looked for at this moment
};

}  // namespace forebay::worker
