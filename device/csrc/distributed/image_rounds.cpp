#include "distributed/image_rounds.h"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/python.h"

namespace forebay {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kIdle = 100ms;        // from one look for a round to the next
constexpr auto kStep = 2ms;          // likewise, for what others say in one
constexpr auto kHereMax = 2s;        // until all are there, while nobody holds anything
constexpr auto kHoldMax = 3s;        // for which collectives are held
constexpr auto kKeptMax = 10min;     // until all images are kept, while nobody holds anything
constexpr auto kPauseMax = 60s;      // after rounds that were given up

const std::string kHere = "here", kHold = "hold", kKept = "kept", kDecision = "decision";
const std::string kYes = "1", kNo = "0";
constexpr char kFound = 'f', kGoOn = 'g', kGivenUp = 'x';

std::string progress_of(uint64_t search) { return "progress/" + std::to_string(search); }
std::string verdict_of(uint64_t search) { return "verdict/" + std::to_string(search); }

// What `look` finds until then; nothing if it does not, or `goes_on` is false.
template <typename Found>
std::optional<Found> awaited(Clock::time_point until, const std::function<bool()>& goes_on, const std::function<std::optional<Found>()>& look) {
  for (;;) {
    if (auto found = look()) return found;
    if (Clock::now() >= until || !goes_on()) return std::nullopt;
    std::this_thread::sleep_for(kStep);
  }
}

}  // namespace

void ImageRounds::start() {
  const auto begin = [](std::shared_ptr<ImageRounds> rounds, void (ImageRounds::*work)()) {
    std::thread([rounds = std::move(rounds), work] {
      ::pthread_setname_np(::pthread_self(), "forebay-images");
      try {
        (*rounds.*work)();
      } catch (const std::exception&) {  // the store is gone, or another program writes to it
      }
      rounds->forbid();
      rounds->hold(false);
    }).detach();
  };
  begin(shared_from_this(), &ImageRounds::run);
  if (rank_ == 0) begin(shared_from_this(), &ImageRounds::lead);
}

// What the program does.

void ImageRounds::join(const std::string& group, uint64_t rank, uint64_t size) {
  const std::lock_guard lock(mutex_);
  auto& membership = progress_.groups[group];
  membership.rank = rank;
  membership.size = size;
}

void ImageRounds::meet(const std::string& group, uint64_t member) {
  const std::lock_guard lock(mutex_);
  progress_.groups[group].met.insert(member);
}

void ImageRounds::leave(const std::string& group) {
  const std::lock_guard lock(mutex_);
  progress_.groups.erase(group);
  std::erase_if(progress_.recorded, [&](const auto& one) { return one.first.group == group; });
}

bool ImageRounds::record(const std::vector<Channel>& channels) {
  const std::lock_guard lock(mutex_);
  if (holds_ && !progress_.is_behind(targets_)) return false;
  for (const auto& channel : channels) ++progress_.recorded[channel];
  if (holds_) changed_.notify_all();
  return true;
}

void ImageRounds::wait() {
  const WithoutGil free;
  for (std::unique_lock lock(mutex_); holds_ && !progress_.is_behind(targets_);) {
    changed_.wait_for(lock, kIdle);
    lock.unlock();
    check_signals();
    lock.lock();
  }
}

bool ImageRounds::go_on(uint64_t meeting) {
  uint64_t asked = 0;
  {
    const std::lock_guard lock(mutex_);
    meeting_ = meeting;
    asked = std::exchange(asked_, 0);
  }
  return asked != 0 && store_->begin(meeting) == asked;
}

// As a member.

void ImageRounds::run() {
  uint64_t last = store_->announced().value_or(std::pair(uint64_t{0}, uint64_t{0})).first;
  for (std::optional<uint64_t> wished; lives(); std::this_thread::sleep_for(kIdle)) {
    const auto [round, meeting] = store_->announced().value_or(std::pair(last, uint64_t{0}));
    if (round > last) {
      last = round;
      take_part(round, meeting);
    } else if (wished != last && stream_.sender_.wants_common_image()) {
      store_->wish(last);
      wished = last;
    }
  }
}

bool ImageRounds::is_of(uint64_t meeting) {
  if (!lives()) return false;
  const std::lock_guard lock(mutex_);
  return meeting_ == meeting;
}

void ImageRounds::take_part(uint64_t round, uint64_t meeting) {
  if (!is_of(meeting) || !stream_.sender_.can_ask_for_common_image()) return;
  store_->report(round, kHere, rank_, kYes);
  const auto all_here = awaited<std::string>(Clock::now() + 2 * kHereMax, [&] { return is_of(meeting); }, [&] { return store_->reported(round, kHold, 0); });
  if (all_here != kYes) return;
  hold(true);
  const auto cut = find_cut(round, meeting);
  bool is_asked = false;
  if (cut) {
    note_asked(round, meeting);
    is_asked = ask_for_image() && is_at(*cut);
  }
  hold(false);
  store_->report(round, kKept, rank_, is_asked && is_kept(round) ? kYes : kNo);
  settle(round);
}

void ImageRounds::hold(bool holds) {
  {
    const std::lock_guard lock(mutex_);
    holds_ = holds;
    targets_.clear();
  }
  changed_.notify_all();
}

std::optional<std::string> ImageRounds::arrived(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return !progress_.is_behind(targets_); })) return std::nullopt;
  return progress_.packed();
}

// Groups may be made and left while collectives are held.
bool ImageRounds::is_at(const std::string& cut) {
  const std::lock_guard lock(mutex_);
  return progress_.packed() == cut;
}

std::optional<std::string> ImageRounds::find_cut(uint64_t round, uint64_t meeting) {
  const auto until = Clock::now() + kHoldMax;
  for (uint64_t search = 0;; ++search) {
    const auto progress = arrived(until);
    if (!progress) return std::nullopt;
    store_->report(round, progress_of(search), rank_, *progress);
    const auto verdict = awaited<std::string>(until, [&] { return is_of(meeting); }, [&] { return store_->reported(round, verdict_of(search), 0); });
    if (!verdict || verdict->front() != kGoOn) return verdict && verdict->front() == kFound ? progress : std::nullopt;
    {
      const std::lock_guard lock(mutex_);
      targets_ = counts_of(verdict->substr(1));
    }
    changed_.notify_all();
  }
}

void ImageRounds::note_asked(uint64_t round, uint64_t meeting) {
  const std::lock_guard lock(mutex_);
  if (meeting_ == meeting) asked_ = round;
}

bool ImageRounds::ask_for_image() {
  try {
    return stream_.sender_.ask_for_common_image();
  } catch (const std::exception&) {  // the next call that reads or records says so
    return false;
  }
}

bool ImageRounds::is_asked(uint64_t round) {
  if (!lives()) return false;
  const std::lock_guard lock(mutex_);
  return asked_ == round;
}

bool ImageRounds::is_kept(uint64_t round) {
  const auto kept = awaited<bool>(Clock::now() + kKeptMax, [&] { return is_asked(round); }, [&] {
    try {
      stream_.receiver_.listen();
    } catch (const std::exception&) {  // the next call that reads or records says so
    }
    return stream_.sender_.has_common_image();
  });
  return kept.value_or(false) && is_asked(round);
}

// Where the workers were replaced meanwhile this was settled with them.
void ImageRounds::settle(uint64_t round) {
  while (is_asked(round)) {
    const auto decision = store_->reported(round, kDecision, 0);
    if (decision && stream_.sender_.count_common_image(*decision == kYes)) {
      const std::lock_guard lock(mutex_);
      if (asked_ == round) asked_ = 0;
      return;
    }
    std::this_thread::sleep_for(5 * kStep);
  }
}

// As the first process.

void ImageRounds::lead() {
  uint64_t round = store_->announced().value_or(std::pair(uint64_t{0}, uint64_t{0})).first;
  forgotten_ = round;
  std::chrono::milliseconds pause = kIdle;
  for (; lives(); std::this_thread::sleep_for(pause)) {
    if (!store_->is_wished(round) || !stream_.sender_.can_ask_for_common_image()) continue;
    const uint64_t meeting = stream_.commands().meetings().number();
    if (!is_of(meeting)) continue;
    store_->announce(++round, meeting);
    const bool is_over = lead_round(round, meeting) || !is_of(meeting);  // new workers need images soon
    pause = is_over ? kIdle : std::min<std::chrono::milliseconds>(kPauseMax, 2 * pause);
  }
}

bool ImageRounds::lead_round(uint64_t round, uint64_t meeting) {
  const auto goes_on = [&] { return is_of(meeting); };
  const auto all = [&](const std::string& what, Clock::duration most) {
    return awaited<std::vector<std::string>>(Clock::now() + most, goes_on, [&] { return store_->reported_by_all(round, what, size_); });
  };
  const bool are_here = all(kHere, kHereMax).has_value();
  store_->report(round, kHold, 0, are_here ? kYes : kNo);
  if (!are_here) return false;
  forget_before(round);
  if (!lead_search(round, meeting)) return false;
  const auto kept = all(kKept, kKeptMax);
  const bool are_kept = kept && std::all_of(kept->begin(), kept->end(), [](const std::string& one) { return one == kYes; });
  const bool counts = are_kept && store_->count(round, meeting);
  store_->report(round, kDecision, 0, counts ? kYes : kNo);
  return counts;
}

// All have heard all of the rounds before that they are to hear.
void ImageRounds::forget_before(uint64_t round) {
  for (; forgotten_ + 1 < round; ++forgotten_) {
    for (const auto& what : {kHere, kHold, kKept, kDecision}) store_->forget(forgotten_ + 1, what, size_);
    for (uint64_t search = 0; search <= searches_; ++search) {
      store_->forget(forgotten_ + 1, progress_of(search), size_);
      store_->forget(forgotten_ + 1, verdict_of(search), 1);
    }
  }
  searches_ = 0;
}

bool ImageRounds::lead_search(uint64_t round, uint64_t meeting) {
  CutSearch search;
  const auto until = Clock::now() + kHoldMax;
  for (;;) {
    const uint64_t number = search.round();
    searches_ = std::max(searches_, number);
    const auto reported = awaited<std::vector<std::string>>(until, [&] { return is_of(meeting); }, [&] { return store_->reported_by_all(round, progress_of(number), size_); });
    std::vector<Progress> members;
    for (const auto& one : reported.value_or(std::vector<std::string>())) members.push_back(Progress::of(one));
    const auto verdict = reported ? search.conclude(members) : CutSearch::Verdict::kImpossible;
    const bool goes_on = verdict == CutSearch::Verdict::kGoOn, is_found = verdict == CutSearch::Verdict::kFound;
    store_->report(round, verdict_of(number), 0, goes_on ? kGoOn + packed(search.targets()) : std::string(1, is_found ? kFound : kGivenUp));
    if (!goes_on) return is_found;
  }
}

// Of this process.

Rounds& Rounds::get() {
  static auto* rounds = new Rounds();
  return *rounds;
}

void Rounds::offer(const void* group, c10::intrusive_ptr<c10d::Store> store, uint64_t rank, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (!world_ && size > 1) world_ = World{group, std::move(store), rank, size};
}

void Rounds::withdraw(const void* group) {
  const std::lock_guard lock(mutex_);
  if (!world_ || world_->group != group) return;
  world_.reset();
  if (rounds_) rounds_->forbid();
  rounds_ = nullptr;
}

std::shared_ptr<ImageRounds> Rounds::of(CommandStream& stream) {
  const WithoutGil free;
  const std::lock_guard lock(mutex_);
  if (rounds_ && rounds_->is_present()) {
    if (rounds_->are_of(stream)) return rounds_;
    rounds_->forbid();
    return nullptr;
  }
  auto& meetings = stream.commands().meetings();
  if (!world_ || !meetings.are_known()) return nullptr;
  rounds_ = std::make_shared<ImageRounds>(stream, std::make_shared<RoundStore>(*world_->store), world_->rank, world_->size);
  meetings.keep_images(rounds_);
  rounds_->start();
  return rounds_;
}

}  // namespace forebay
