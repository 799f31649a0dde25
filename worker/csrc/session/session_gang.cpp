// A session with several devices: each command goes to the device where its storages lie, or they come to it.
#include "session/session.h"

namespace forebay::worker {

const std::string Session::kNoOperator = "none";

void Session::join(std::vector<std::unique_ptr<Rank>> others, Homes homes) {
  gang_ = std::make_unique<Gang>(std::move(others), homes, device_, storages_, layouts_);
  if (homes == Homes::kDataParallel) data_parallel_ = std::make_unique<DataParallel>(*gang_, device_, storages_, layouts_, caller_, [this] { return is_settled(); });
}

void Session::watch_others(std::vector<pollfd>& polled) const {
  for (int place = 1; gang_ && place < static_cast<int>(gang_->size()); ++place) polled.push_back({gang_->rank(place).socket(), POLLRDHUP, 0});
}

void Session::check_others(const std::vector<pollfd>& polled) const {
  if (!gang_) return;
  auto connection = polled.rbegin();
  for (int place = static_cast<int>(gang_->size()) - 1; place > 0; --place, ++connection) {
    if (connection->revents != 0) gang_->rank(place).lose("has ended");
  }
}

void Session::make_whole(const std::vector<uint64_t>& ids, bool only_read) {
  if (!data_parallel_) return;
  if (only_read) data_parallel_->gather_to_read(ids);
  else data_parallel_->gather(ids);
}

void Session::settle_gang() {
  if (gang_) is_settled();
}

bool Session::is_settled() {
  if (stopped_) return false;
  const GangWork::Wait wait(work_);
  const Running::Call waiting(caller_.running(), *sent_operator_);
  const auto stopped = gang_->settle();
  if (data_parallel_) data_parallel_->settled();
  if (!stopped) return true;
  const Cause cause = announced(stop(stopped->failure));
  for (const uint64_t id : stopped->never_made) {
    if (storages_.has(id)) storages_.insert_failed(id, cause);
  }
  return false;
}

std::optional<int> Session::gathered(const std::vector<uint64_t>& ids, int64_t fresh_bytes) {
  auto place = gang_->place_of(ids, fresh_bytes);
  const bool stays = place && *place == gang_->active() && gang_->is_gathered(ids, *place);
  if (!stays && !is_settled()) return std::nullopt;
  if (!place) place = gang_->clear_place(ids, fresh_bytes);
  gang_->gather(ids, *place);
  gang_->compute_at(*place);
  return place;
}

bool Session::gathered_here(uint64_t request, Plan& plan, uint64_t sequence) {
  if (!is_settled()) {
    caller_.skip_question(plan, words_);
    tell(request, *stopped_);
    return false;
  }
  try {
    const auto ids = Gang::storages_of(plan, words_);
    make_whole(ids, plan.mutated.empty());
    if (gang_->may_lack(0, plan)) gang_->empty(0, ids);  // what it makes may be more than the client knows
    gang_->clear(0, ids, plan.new_bytes);
    gang_->gather(ids, 0);
    gang_->compute_at(0);
    return true;
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    tell(request, *stop_now(plan.op.schema().name(), sequence, &plan));
    return false;
  }
}

void Session::call_in_gang(uint64_t number, uint64_t sequence) {
  Plan& plan = *plans_[number];
  caller_.check(plan, words_);
  if (const Cause& before = lost_ ? lost_ : caller_.unusable()) return never_make(plan, announced(stop_after(*before)));
  if (data_parallel_) data_parallel_->look(number, plan, words_);
  try {
    if (data_parallel_ && data_parallel_->is_on()) return call_divided(number, plan, sequence);
    auto parts = gang_->parts_of(number, words_);
    if (parts.empty()) carry_out(number, plan, words_, sequence);
    for (auto part = parts.begin(); part != parts.end() && !stopped_; ++part) carry_out(part->definition, *part->plan, part->words, sequence);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.withdraw();
    announced(stop_now(plan.op.schema().name(), sequence, &plan));
  }
  if (stopped_) never_make(plan, stopped_);
}

wire::Work& Session::work_of(const Way& way, const Plan& plan) {
  if (way.whole) return work_.alone(plan.op, way.alone);
  if (way.by_owners) return data_parallel_->is_parted() ? work_.divided() : work_.alone(plan.op, wire::Alone::kKept);
  return way.starts.empty() ? work_.copies() : work_.divided();
}

void Session::call_divided(uint64_t number, Plan& plan, uint64_t sequence) {
  Way* way = data_parallel_->known(number, plan, words_);
  const bool settles = way == nullptr || data_parallel_->must_settle(*way, plan);
  if (settles && !is_settled()) return never_make(plan, stopped_);
  const uint64_t since_ns = work_.clock();
  if (way == nullptr) way = &data_parallel_->prepared(number, plan, words_);
  if (!data_parallel_->is_on()) {
    carry_out(number, plan, words_, sequence);
    return stopped_ ? never_make(plan, stopped_) : void();
  }
  sent_operator_ = &plan.op.schema().name();
  const TimedCall timed(timing_, sequence);
  try {
    data_parallel_->carry_out(*way, number, plan, words_, sequence);
    if (way->whole) device_.synchronize();  // or an accelerator's time for it would be taken for the next call's
    work_.book(work_of(*way, plan), since_ns);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.withdraw();
    if (is_settled()) announced(stop_now(plan.op.schema().name(), sequence, &plan));
    never_make(plan, stopped_);
  }
}

void Session::carry_out(uint64_t definition, Plan& plan, const wire::Words& words, uint64_t sequence) {
  const uint64_t since_ns = work_.clock();
  const auto ids = Gang::storages_of(plan, words);
  const auto place = gathered(ids, plan.new_bytes);
  if (!place) return;  // stopped: the caller says what was never made
  const bool is_watched = gang_->may_lack(*place, plan) && Gang::is_repeatable(plan, words);
  if (is_watched && !is_settled()) return;
  const bool is_timed = timing_.is_noting();
  const TimedCall timed(timing_, sequence);
  auto& work = work_.alone(plan.op, data_parallel_ ? data_parallel_->why_off() : wire::Alone::kNoBatch);
  try {
    carry_out_at(*place, definition, plan, words, sequence);
    if (is_watched) demand_settled();
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {  // for want of memory for what its operator keeps while it runs: then the device keeps nothing else
    if (!is_watched || !is_out_of_memory(std::current_exception())) throw;
    caller_.withdraw();
    gang_->empty(*place, ids);
    carry_out_at(*place, definition, plan, words, sequence);
    demand_settled();
  }
  work_.book(work, since_ns);
  if (*place != 0 && is_timed) settle_gang();
}

void Session::carry_out_at(int place, uint64_t definition, Plan& plan, const wire::Words& words, uint64_t sequence) {
  if (place == 0) {
    caller_.bind(plan, words);
    return caller_.run(plan);
  }
  if (&words != &words_) caller_.check(plan, words);
  caller_.take_results(plan);
  gang_->call(place, definition, plan, words, sequence);
  sent_operator_ = &plan.op.schema().name();
}

void Session::demand_settled() {
  const GangWork::Wait wait(work_);
  const Running::Call waiting(caller_.running(), *sent_operator_);
  for (const auto& [place, failure] : gang_->settle_each()) throw CommandError(failure.code, failure.message);
}

void Session::never_make(const Plan& plan, const Cause& cause) {
  for (size_t index = 0; index < plan.words.size(); ++index) {
    if (plan.words[index] == wire::Word::kNew) storages_.insert_failed(words_[index], cause);
  }
}

void Session::tell_gang(wire::Reader& in) {
  wire::Writer head;
  head.reply(wire::Reply::kGang);
  head.varint(in.varint());
  wire::put_gang_work(head, work_.told(gang_ ? gang_->size() : 1));
  replies_.send(head, nullptr, 0);
}

}  // namespace forebay::worker
