#include "session/checkpoints.h"

#include <utility>

#include <c10/util/Exception.h>
#include <forebay/checkpoints.h>

#include "call/call_storages.h"

namespace forebay::worker {

namespace {

const std::string kComputesNothing = "its device computes nothing";
const std::string kSeveral = "it is several devices";
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

uint8_t Checkpoints::extent(bool in_images) const {
  if (!device_.computes()) return 0;
  if (!in_images) return wire::kKeepsCheckpoints;
  return shared_.are_several() ? wire::kOnlyCarriesCheckpoints : wire::kCarriesCheckpoints;
}

void Checkpoints::yield_to_recomputation() { versions_.end(kRecomputes); }

// One that cannot be taken is one that is not there.
void Checkpoints::take(wire::Reader& in) {
  const uint64_t number = in.varint();
  const uint8_t bits = in.u8();
  check();
  if (bits & wire::kForForks) return take_for_forks(number);
  if (!device_.computes()) return;
  if (const std::string why = refusal(); !why.empty()) return versions_.refuse(why);
  versions_.take(number, bits & wire::kNamed);
}

void Checkpoints::take_for_forks(uint64_t number) {
  if (shared_.are_several()) return versions_.refuse_forks(kSeveral, number);
  if (!device_.computes()) return versions_.refuse_forks(kComputesNothing, number);
  const std::string why = storages_.falls_short() ? kFailedBefore : refusal();
  if (!why.empty()) return versions_.refuse_forks(why, number);
  versions_.take_for_forks(number, {effects_.next_call(), effects_.failures(), storages_.items()});
}

std::string Checkpoints::refusal() const {
  if (recomputed_.was_wanted()) return kRecomputes;
  if (collectives_.has_joined()) return kInGroup;
  return effects_.goes_on() ? "" : kFailedBefore;
}

std::unique_ptr<ArrivingVersions> Checkpoints::arriving() {
  auto versions = std::make_unique<ArrivingVersions>(device_, versions_, storages_);
  if (!device_.computes()) versions->refuse(kComputesNothing);
  return versions;
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
    if (auto* watch = storages_.at(id).watch()) watch->before_placed_write();
  }
  if (shared_.are_several()) return;
  if (!device_.is_host() && (is_question || !is_repeatable(plan, words))) versions_.make_room(plan.given_bytes + plan.new_bytes);
}

void Checkpoints::begin_segment(const Path& path, Templates& templates) {
  if (!versions_.are_kept()) return;
  for (const wire::Step* step : path) {
    if (wire::is_allocation(step->key)) continue;
    for (const uint64_t id : written_of(templates.known(wire::key_value(step->key)), words_of(*step))) {
      if (auto* watch = storages_.has(id) ? storages_.at(id).watch() : nullptr) watch->before_placed_write();
    }
  }
}

void Checkpoints::run(const RecordedCall::Call& call) {
  try {
    return recomputed_.run(call);
  } catch (const c10::OutOfMemoryError&) {
    if (storages_.kept_bytes() == 0 || !(is_repeatable(call.plan, call.words) || caller_.lacks_memory())) throw;
  }
  versions_.drop_all(Versions::kForMemory);
  device_.release_cache();
  caller_.withdraw();
  caller_.bind(call.plan, call.words);
  recomputed_.run(call);
}

}  // namespace forebay::worker
