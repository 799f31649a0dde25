#include "replay/images.h"

#include <algorithm>

namespace forebay {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kCostParts = 50;  // an image takes one of so many parts of the time from one to the next
constexpr Images::Duration kWorkMax = 30s;  // unless more than this would have to be done again

}  // namespace

void Images::begin(bool keeps) {
  keeps_ = keeps;
  least_ = {};
  const std::lock_guard lock(mutex_);
  answer_.reset();
}

void Images::lose(Journal& journal) {
  settle(journal);
  if (is_kept_here_) return;  // the members of its group say whether it counts
  if (!journal.awaits_last_image()) is_asked_together_ ? journal.image_failed() : journal.image_lost();
}

uint64_t Images::ask_last(const Journal& journal, Duration worked) {
  if (!keeps_ || interval_ns_ <= 0 || journal.is_given_up()) return 0;
  return ask(journal, worked);
}

void Images::count(Journal& journal, bool all_kept) {
  is_kept_here_ = false;
  if (!all_kept) return journal.image_failed();
  journal.image_kept();
  ++kept_;
}

uint64_t Images::answered(wire::Reader body) {
  Answer answer{};
  answer.number = body.varint();
  body.varint();
  answer.took_ns = static_cast<int64_t>(body.varint());
  answer.is_kept = body.string().empty();
  const std::lock_guard lock(mutex_);
  answer_ = answer;
  return answer.is_kept ? last_request_ : 0;
}

void Images::settle(Journal& journal) {
  const std::lock_guard lock(mutex_);
  if (!answer_ || answer_->number != number_) return;
  if (answer_->is_kept) {
    if (is_asked_together_) {
      is_kept_here_ = true;
    } else {
      journal.image_kept();
      ++kept_;
    }
    least_ = std::min(kWorkMax, kCostParts * Duration(answer_->took_ns));
  } else {
    journal.image_failed();
    least_ = std::clamp(2 * least_, std::min(kWorkMax, Duration(interval_ns_)), kWorkMax);
  }
  answer_.reset();
}

bool Images::is_due(const Journal& journal, Duration worked, bool between) const { return !is_in_group_ && is_needed(journal, worked, between); }

bool Images::is_needed(const Journal& journal, Duration worked, bool between) const {
  const Duration interval(interval_ns_);
  if (!may_ask(journal) || interval <= 0ns) return false;
  const Duration work = worked - asked_at_;
  const uint64_t full = journal.bytes_max();
  const bool is_urgent = !journal.is_whole() || journal.bytes() > full / 4 * 3;
  if (work < least_ && (!is_urgent || !journal.is_whole())) return false;
  const bool is_due = is_urgent || journal.bytes() > full / 4 || (journal.bytes() > 0 && work >= std::max(interval, least_));
  return is_due && (between || is_urgent || journal.bytes() > full / 2 || work >= std::max({kWorkMax, 2 * interval, 2 * least_}));
}

uint64_t Images::ask(const Journal& journal, Duration worked, bool together) {
  asked_at_ = worked;
  is_asked_together_ = together;
  is_kept_here_ = false;
  const std::lock_guard lock(mutex_);
  last_request_ = journal.last_request();
  return ++number_;
}

}  // namespace forebay
