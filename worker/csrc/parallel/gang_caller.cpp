#include "parallel/gang_caller.h"

#include <utility>

#include "call/call_storages.h"

namespace forebay::worker {

const std::string GangCaller::kNoOperator = "none";

void GangCaller::join(std::vector<std::unique_ptr<Rank>> others, Homes homes, Layouts& layouts) {
  gang_ = std::make_unique<Gang>(std::move(others), homes, device_, storages_, layouts);
  effects_.explain_memory_by([this](const std::string& message) { return gang_->memory().out_of_memory_text(message); });
  if (are_divided(homes)) data_parallel_ = std::make_unique<DataParallel>(*gang_, device_, storages_, layouts, caller_, work_, [this] { return is_settled(); });
}

wire::GangWork GangCaller::reported() const {
  auto told = work_.told(gang_ ? gang_->size() : 1);
  if (data_parallel_) told.plan = data_parallel_->batches().plan().reported();
  return told;
}

void GangCaller::watch(std::vector<pollfd>& polled) const {
  for (int place = 1; gang_ && place < static_cast<int>(gang_->size()); ++place) polled.push_back({gang_->rank(place).socket(), POLLRDHUP, 0});
}

void GangCaller::check(const std::vector<pollfd>& polled) const {
  if (!gang_) return;
  auto connection = polled.rbegin();
  for (int place = static_cast<int>(gang_->size()) - 1; place > 0; --place, ++connection) {
    if (connection->revents != 0) gang_->rank(place).lose("has ended");
  }
}

void GangCaller::make_whole(const std::vector<uint64_t>& ids, bool only_read) {
  if (recomputing_.use) recomputing_.use(ids, only_read);
  if (!data_parallel_) return;
  if (only_read) data_parallel_->gather_to_read(ids);
  else data_parallel_->gather(ids);
}

bool GangCaller::is_settled() {
  if (effects_.stopped()) return false;
  if (is_repeating_) {
    demand_settled();
    return true;
  }
  const GangWork::Wait wait(work_);
  const Running::Call waiting(caller_.running(), *sent_operator_);
  const auto stopped = gang_->settle();
  if (data_parallel_) data_parallel_->settled();
  if (!stopped) return true;
  const Cause cause = effects_.announced(effects_.stop(stopped->failure));
  if (recomputing_.withdraw) recomputing_.withdraw(stopped->failure.sequence, stopped->never_made);
  for (const uint64_t id : stopped->never_made) {
    if (storages_.has(id)) effects_.never_make(id, cause);
  }
  return false;
}

std::optional<int> GangCaller::gathered(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  auto place = gang_->homes().place_of(ids, fresh_bytes);
  const bool stays = place && *place == gang_->active() && gang_->homes().is_gathered(ids, *place);
  if (!stays && !is_settled()) return std::nullopt;
  if (!place) place = gang_->homes().clear_place(ids, fresh_bytes);
  gang_->homes().gather(ids, *place);
  gang_->compute_at(*place);
  return place;
}

Cause GangCaller::gather_question(Plan& plan, const wire::Words& words, uint64_t sequence) {
  if (!is_settled()) {
    caller_.skip_question(plan, words);
    return effects_.stopped();
  }
  try {
    const auto ids = storages_of(plan, words);
    make_whole(ids, plan.mutated.empty());
    if (gang_->memory().may_lack(0, plan)) gang_->homes().empty(0, ids);  // what it makes may be more than the client knows
    gang_->homes().clear(0, ids, plan.new_bytes);
    gang_->homes().gather(ids, 0);
    gang_->compute_at(0);
    return nullptr;
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    return effects_.stop_now(plan.op.schema().name(), sequence, &plan);
  }
}

Cause GangCaller::call(uint64_t number, Plan& plan, const wire::Words& given, uint64_t sequence) {
  caller_.check(plan, given);
  if (const Cause& before = effects_.lost() ? effects_.lost() : caller_.unusable()) return effects_.announced(effects_.stop_after(*before));
  const auto slices = data_parallel_ ? data_parallel_->look(number, plan, given) : nullptr;
  took_batch_ = slices || Batches::makes_batch(plan, given);
  const wire::Words& words = slices ? slices->words : given;
  const Sent whole{number, plan, words, sequence, /*is_part=*/false};
  Cause cause;
  try {
    cause = carried_out(whole);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    cause = carried_out_by_rows(whole);
  }
  if (data_parallel_ && !cause) data_parallel_->batches().note_call(plan, words);
  return cause;
}

bool GangCaller::begin_repeats() {
  is_repeating_ = is_settled();
  return is_repeating_;
}

void GangCaller::repeat(uint64_t number, Plan& plan, const wire::Words& words) {
  caller_.check(plan, words);
  const Sent call{number, plan, words, effects_.next_call(), /*is_part=*/false};
  Cause cause;
  try {
    cause = carried_out(call);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    cause = tried_by_rows(call);
  }
  if (cause) throw CommandError(cause->code, cause->message);
}

void GangCaller::end_repeats() {
  is_repeating_ = false;
  demand_settled();
}

void GangCaller::give_up_repeats() {
  is_repeating_ = false;
  gang_->settle_each();
}

Cause GangCaller::carried_out(const Sent& call) {
  if (data_parallel_ && data_parallel_->is_on()) return call_divided(call);
  auto parts = gang_->parts_of(call.definition, call.words);
  if (parts.empty()) carry_out(call);
  for (auto part = parts.begin(); part != parts.end() && !effects_.stopped(); ++part) {
    carry_out({part->definition, *part->plan, part->words, call.sequence, /*is_part=*/true});
  }
  return effects_.stopped();
}

Cause GangCaller::carried_out_by_rows(const Sent& call) {
  try {
    return tried_by_rows(call);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.withdraw();
    return is_settled() ? stop_now(call) : effects_.stopped();
  }
}

Cause GangCaller::tried_by_rows(const Sent& call) {
  caller_.withdraw();
  if (!is_settled()) return effects_.stopped();
  const bool may_be_divided = data_parallel_ && is_out_of_memory(std::current_exception()) && is_repeatable(call.plan, call.words) &&
                              gang_->parts_of(call.definition, call.words).empty();
  if (!may_be_divided || !data_parallel_->divide_for_room(call.definition, call.plan, call.words)) throw;
  return call_divided(call);
}

wire::Work& GangCaller::work_of(const Way& way, const Plan& plan) {
  if (way.whole) return work_.alone(plan.op, way.alone);
  if (way.by_owners) return data_parallel_->is_parted() ? work_.divided() : work_.alone(plan.op, wire::Alone::kKept);
  return way.starts.empty() ? work_.copies() : work_.divided();
}

Cause GangCaller::call_divided(const Sent& call) {
  const auto parts = data_parallel_->parts_by_placement(call.definition, call.plan, call.words);
  for (const auto& part : parts) {
    if (const Cause cause = call_divided({part.definition, *part.plan, part.words, call.sequence, /*is_part=*/true})) return cause;
  }
  if (!parts.empty()) return nullptr;
  Way* way = data_parallel_->known(call.definition, call.plan, call.words);
  const bool settles = way == nullptr || data_parallel_->must_settle(*way, call.plan);
  if (settles && !is_settled()) return effects_.stopped();
  const uint64_t since_ns = work_.clock();
  if (way == nullptr) way = &data_parallel_->prepared(call.definition, call.plan, call.words);
  if (!data_parallel_->is_on()) {
    carry_out(call);
    return effects_.stopped();
  }
  sent_operator_ = &call.plan.op.schema().name();
  const auto timed = timed_call(call);
  data_parallel_->carry_out(*way, call.definition, call.plan, call.words, call.sequence);
  if (way->whole) device_.synchronize();  // or an accelerator's time for it would be taken for the next call's
  work_.book(work_of(*way, call.plan), since_ns);
  gang_->memory().note_peaks();
  return nullptr;
}

void GangCaller::carry_out(const Sent& call) {
  const uint64_t since_ns = work_.clock();
  const auto ids = storages_of(call.plan, call.words);
  const auto place = gathered(ids, call.plan.new_bytes);
  if (!place) return;  // stopped: the caller says what was never made
  const bool is_watched = gang_->memory().may_lack(*place, call.plan) && is_repeatable(call.plan, call.words);
  if (is_watched && !is_settled()) return;
  const bool is_timed = timing_.is_noting() && !is_repeating_;
  const auto timed = timed_call(call);
  auto& work = work_.alone(call.plan.op, data_parallel_ ? data_parallel_->why_off() : wire::Alone::kNoBatch);
  try {
    carry_out_at(*place, call);
    if (is_watched) demand_settled();
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {  // for want of memory for what its operator keeps while it runs: then the device keeps nothing else
    if (!is_watched || !is_out_of_memory(std::current_exception())) throw;
    caller_.withdraw();
    gang_->homes().empty(*place, ids);
    carry_out_at(*place, call);
    demand_settled();
  }
  work_.book(work, since_ns);
  if (*place != 0 && is_timed) is_settled();
}

void GangCaller::carry_out_at(int place, const Sent& call) {
  if (place == 0) {
    caller_.bind(call.plan, call.words);
    return caller_.run(call.plan);
  }
  if (call.is_part) caller_.check(call.plan, call.words);
  caller_.take_results(call.plan);
  gang_->call(place, call.definition, call.plan, call.words, call.sequence);
  sent_operator_ = &call.plan.op.schema().name();
}

std::unique_ptr<TimedCall> GangCaller::timed_call(const Sent& call) { return is_repeating_ ? nullptr : std::make_unique<TimedCall>(timing_, call.sequence); }

void GangCaller::demand_settled() {
  const GangWork::Wait wait(work_);
  const Running::Call waiting(caller_.running(), *sent_operator_);
  if (data_parallel_) data_parallel_->settled();
  for (const auto& [place, failure] : gang_->settle_each()) throw CommandError(failure.code, failure.message);
}

void GangCaller::park() {
  if (data_parallel_) data_parallel_->park();
  if (!gang_) return;
  gang_->homes().fetch_all();
  gang_->limit(0);
  gang_->flush();
}

void GangCaller::return_memory() {
  if (gang_) gang_->limit(gang_->memory().part_of(storages_.limit_bytes()));
}

void GangCaller::restore() {
  if (gang_) gang_->homes().spread();
}

void GangCaller::forget() {
  if (gang_) gang_->forget();
  if (data_parallel_) data_parallel_->forget();
}

void GangCaller::forget_operators() {
  if (gang_) gang_->forget_operators();
}

}  // namespace forebay::worker
