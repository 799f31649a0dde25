#include "session/checkpoints.h"

#include <utility>

#include <c10/util/Exception.h>
#include <forebay/checkpoints.h>

#include "call/call_storages.h"

namespace forebay::worker {

namespace {

const std::string kRecomputes = "the program has what it computes made again where memory is short";
const std::string kInGroup = "the session is in a process group";
const std::string kFailedBefore = "a call before the checkpoint failed";

wire::Writer head_of(wire::Reply reply, uint64_t request) {
  wire::Writer head;
  head.reply(reply);
  head.varint(request);
  return head;
}

}  // namespace

void Checkpoints::check() {
  if (collectives_.has_joined()) versions_.end(kInGroup);
}

void Checkpoints::yield_to_recomputation() { versions_.end(kRecomputes); }

// One that cannot be taken is one that is not there.
void Checkpoints::take(wire::Reader& in) {
  const uint64_t number = in.varint();
  const bool is_named = in.u8() != 0;
  check();
  if (!are_possible()) return;
  if (recomputed_.was_wanted()) return versions_.refuse(kRecomputes);
  if (collectives_.has_joined()) return versions_.refuse(kInGroup);
  if (!effects_.goes_on()) return versions_.refuse(kFailedBefore);
  versions_.take(number, is_named);
}

void Checkpoints::tell(wire::Reader& in) {
  wire::Writer head = head_of(wire::Reply::kCheckpoints, in.varint());
  versions_.hold(in.varint());
  check();
  put(head);
  replies_.send(head, nullptr, 0);
}

void Checkpoints::put(wire::Writer& head) const {
  wire::Checkpoints told;
  for (const uint64_t number : versions_.numbers()) told.there.push_back({number, versions_.is_present(number)});
  told.why_dropped = versions_.why_dropped();
  wire::put_checkpoints(head, told);
}

void Checkpoints::report_dropped() {
  if (!versions_.take_dropped()) return;
  wire::Writer head = head_of(wire::Reply::kCheckpoints, 0);
  put(head);
  replies_.send(head, nullptr, 0);
}

void Checkpoints::go_back(wire::Reader& in) {
  const uint64_t request = in.varint(), number = in.varint();
  if (effects_.stopped()) return effects_.report(request, *effects_.stopped());
  if (effects_.lost()) return effects_.report(request, Effects::derived(*effects_.lost()));
  check();
  wire::WentBack went;
  try {
    auto result = versions_.go_back(number);
    went.changed = result.changed.size();
    if (result.changed.size() <= wire::kItemsMax) went.storages = std::move(result.changed);
    went.resized = result.resized;
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    return effects_.report(request, *effects_.stop_now("GO_BACK", effects_.next_call()));
  }
  wire::Writer head = head_of(wire::Reply::kWentBack, request);
  wire::put_went_back(head, went);
  replies_.send(head, nullptr, 0);
}

// On an accelerator, a call that may not be carried out again gets room for as much as it was given, beside what it makes.
void Checkpoints::keep_written(const Plan& plan, const wire::Words& words, bool is_question) {
  for (const uint64_t id : written_of(plan, words)) {
    if (auto* watch = storages_.at(id).watch()) watch->before_write();
  }
  if (!device_.is_host() && (is_question || !is_repeatable(plan, words))) versions_.make_room(plan.given_bytes + plan.new_bytes);
}

void Checkpoints::run(Plan& plan, const wire::Words& words) {
  try {
    return recomputed_.run(plan, words);
  } catch (const c10::OutOfMemoryError&) {
    if (storages_.kept_bytes() == 0 || !(is_repeatable(plan, words) || caller_.lacks_memory())) throw;
  }
  versions_.drop_all(Versions::kForMemory);
  device_.release_cache();
  caller_.withdraw();
  caller_.bind(plan, words);
  recomputed_.run(plan, words);
}

}  // namespace forebay::worker
