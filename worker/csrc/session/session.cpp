#include "session/session.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/memory.h"
#include "base/settings.h"
#include "collectives/gang_sums.h"
#include "gang/rate_meter.h"
#include "pipeline/pipeline_executor.h"
#include "tier2/segments.h"

namespace forebay::worker {

namespace {

const std::vector<wire::Word> kAllocationKinds{wire::Word::kNew};

void read_words(const std::vector<wire::Word>& kinds, wire::Reader& in, wire::Words& words) {
  words.clear();
  for (const wire::Word kind : kinds) words.push_back(wire::get_word(in, kind));
}

// All before it is done, or the session is stopped.
void answer_sync(Effects& effects, Replies& replies, uint64_t request) {
  if (effects.stopped()) return effects.report(request, *effects.stopped());
  replies.done(request);
}

void report_times(Timing& timing, Replies& replies, wire::Reader& in) {
  const uint64_t request = in.varint();
  wire::Writer head;
  head.reply(wire::Reply::kTimes);
  head.varint(request);
  timing.tell(head);
  replies.send(head, nullptr, 0);
}

void report_gang(const GangCaller& gang, Replies& replies, wire::Reader& in) {
  wire::Writer head;
  head.reply(wire::Reply::kGang);
  head.varint(in.varint());
  wire::put_gang_work(head, gang.reported());
  replies.send(head, nullptr, 0);
}

}  // namespace

// Commands.

struct Session::Command {
  enum class Place : uint8_t {
    kUnknown,
    kAmongSteps,   // may come between steps that are deferred
    kBetween,      // carries out the deferred steps first
    kEndsSegment,  // ends the segment first
  };
  Place place = Place::kUnknown;
  bool waits_for_lease = false;
  void (*carry_out)(Session& session, wire::Reader& in) = nullptr;
};

const Session::Command& Session::command_of(uint8_t opcode) {
  using In = wire::Reader;
  using enum wire::Command;
  using enum Command::Place;
  constexpr size_t kCommands = static_cast<size_t>(kRenumber) + 1;
  static const auto table = [] {
    std::array<Command, kCommands> commands{};
    const auto set = [&](wire::Command command, Command::Place place, bool waits_for_lease, void (*carry_out)(Session&, In&)) {
      commands[static_cast<size_t>(command)] = {place, waits_for_lease, carry_out};
    };
    set(kHello, kBetween, false, [](Session&, In&) { throw wire::WireError("a second HELLO"); });
    set(kOperator, kAmongSteps, false, [](Session& session, In& in) { session.define_operator(in); });
    set(kTemplate, kAmongSteps, false, [](Session& session, In& in) { session.define_template(in); });
    set(kForget, kBetween, false, [](Session& session, In&) { session.forget(/*all=*/false); });
    set(kRenumber, kEndsSegment, false, [](Session& session, In&) { session.forget(/*all=*/true); });
    set(kFollow, kAmongSteps, false, [](Session& session, In& in) { session.following_ = in.bounded(wire::kStepsMax, "the number of steps"); });
    set(kStep, kAmongSteps, false, [](Session& session, In& in) { session.step(in); });
    set(kCall, kAmongSteps, true, [](Session& session, In& in) { session.call(in); });
    set(kAllocate, kAmongSteps, false, [](Session& session, In& in) { session.allocate(in); });
    set(kFree, kAmongSteps, false, [](Session& session, In& in) { session.free(in); });
    set(kCut, kEndsSegment, false, [](Session& session, In& in) { session.cut(in); });
    set(kAsk, kEndsSegment, true, [](Session& session, In& in) { session.ask(in); });
    set(kSync, kEndsSegment, false, [](Session& session, In& in) {
      session.settle();
      answer_sync(session.effects_, session.replies_, in.varint());
    });
    set(kResize, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.resize(in); });
    set(kWrite, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.write(in); });
    set(kRead, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.read(in); });
    set(kCopy, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.copy(in); });
    set(kShare, kBetween, false, [](Session& session, In& in) { session.transfers_.share(in); });
    set(kWriteShared, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.write_shared(in); });
    set(kReadShared, kEndsSegment, true, [](Session& session, In& in) { session.transfers_.read_shared(in); });
    set(kTime, kBetween, false, [](Session& session, In& in) { session.timing_.begin(in.bounded(wire::kTimesMax, "the number of calls to time")); });
    set(kTellTimes, kBetween, false, [](Session& session, In& in) { report_times(session.timing_, session.replies_, in); });
    set(kTellSegments, kAmongSteps, false, [](Session& session, In& in) { session.report_segments(in); });
    set(kTellGang, kAmongSteps, false, [](Session& session, In& in) { report_gang(session.gang_, session.replies_, in); });
    set(kSettings, kEndsSegment, false, [](Session& session, In& in) { session.settings(in.bounded(wire::kSettingsMax, "the settings")); });
    set(kLimit, kBetween, false, [](Session& session, In& in) {  // as the first worker of a gang says
      session.hold_to(static_cast<int64_t>(std::min(in.varint(), static_cast<uint64_t>(session.given_bytes_))));
      session.collectives_.leave_device();
      session.device_.release_cache();
    });
    set(kHeard, kBetween, false, [](Session& session, In& in) { session.effects_.hear(in.bounded(session.effects_.failures(), "the number of a failure")); });
    set(kDoor, kBetween, false, [](Session& session, In& in) { session.collectives_.open_door(in); });
    set(kMember, kBetween, false, [](Session& session, In& in) { session.collectives_.member(in); });
    set(kExchange, kEndsSegment, true, [](Session& session, In& in) { session.collectives_.exchange(in); });
    set(kReduce, kEndsSegment, true, [](Session& session, In& in) { session.collectives_.reduce(in); });
    set(kReduceEach, kEndsSegment, true, [](Session& session, In& in) { session.collectives_.reduce_each(in); });
    set(kPart, kBetween, false, [](Session& session, In& in) { session.collectives_.part(in); });
    set(kKernel, kBetween, false, [](Session& session, In& in) { session.user_code_.kernels.define(in); });
    set(kTraces, kBetween, false, [](Session& session, In& in) { session.arriving_traces_.take(in, session.templates_, session.traces_, session.freed_); });
    set(kRestore, kBetween, true, [](Session&, In&) { throw wire::WireError("a RESTORE among other commands"); });
    set(kProgram, kBetween, false, [](Session& session, In& in) { session.user_code_.programs.define(in); });
    set(kExecute, kEndsSegment, true, [](Session& session, In& in) { session.user_code_.programs.execute(in); });
    set(kExecuteCalling, kEndsSegment, true, [](Session& session, In& in) {
      const uint64_t request = in.varint();
      session.user_code_.programs.execute_calling(in, request);
      answer_sync(session.effects_, session.replies_, request);
    });
    set(kCheckpoint, kEndsSegment, false, [](Session& session, In& in) { session.checkpoints_.take(in); });
    set(kDropCheckpoint, kBetween, false, [](Session& session, In& in) { session.checkpoints_.drop(in); });
    set(kTellCheckpoints, kBetween, false, [](Session& session, In& in) { session.checkpoints_.tell(in); });
    set(kGoBack, kEndsSegment, true, [](Session& session, In& in) { session.checkpoints_.go_back(in); });
    set(kLaunch, kEndsSegment, true, [](Session& session, In& in) { session.user_code_.kernels.launch(in); });
    return commands;
  }();
  static const Command unknown;
  return opcode < kCommands ? table[opcode] : unknown;
}

Session::Session(Device& device, Replies& replies, GroupHost& group_host)
    : device_(device),
      replies_(replies),
      gang_(device, storages_, caller_, effects_, timing_),
      storages_(device),
      templates_(device),
      caller_(device, storages_),
      effects_(device, storages_, replies),
      recomputed_(device, storages_, templates_, caller_, effects_),
      timing_(device),
      tier1_(*this, storages_),
      segments_({device, storages_, templates_, caller_, effects_, tier1_}, replies, timing_),
      transfers_(device, storages_, gang_, effects_, replies),
      collectives_(group_host, device, storages_, gang_, effects_, timing_, replies),
      user_code_{{device, storages_, gang_, caller_, effects_, timing_, segments_, replies}, {device, storages_, gang_, caller_, effects_, timing_, replies}},
      gang_image_(device, storages_, gang_),
      checkpoints_(device, storages_, gang_image_, caller_, effects_, recomputed_, collectives_, replies),
      image_(device, storages_, gang_, gang_image_, effects_, recomputed_, checkpoints_) {}

void Session::join(std::vector<std::unique_ptr<Rank>> others, Homes homes, GroupHost& group_host, const std::optional<DeviceRates>& rates) {
  gang_.join(std::move(others), homes, templates_.layouts());
  recomputed_.join(gang_);
  gang_.gang().add_up_by(std::make_unique<GangSums>(gang_.gang(), device_, group_host));
  if (are_divided(homes)) gang_.gang().note_rates(rates ? *rates : measured_rates(gang_.gang(), device_));
  std::unique_ptr<Executor> pipelines;
  const ExecutorContext context{device_, storages_, templates_, caller_, effects_, tier1_};
  if (are_divided(homes) && homes != Homes::kRows) {
    pipelines = std::make_unique<KeepingExecutor>(std::make_unique<PipelineExecutor>(context, gang_, homes), checkpoints_, templates_);
  }
  segments_.leave_to_devices(std::move(pipelines));
}

bool Session::is_device_work(wire::Reader in) const {
  if (segments_.is_deferring_steadily()) return true;  // whatever comes may have the deferred steps carried out
  const wire::Step* step = traces_.likely();
  if (following_ == 0) {
    const uint8_t opcode = in.u8();
    const auto command = static_cast<wire::Command>(opcode);
    using enum wire::Command;
    const bool settles = command == kForget || command == kRenumber || command == kSettings;  // what is let go, first
    if (command != kStep) return command_of(opcode).waits_for_lease || (settles && recomputed_.lacks_any());
    const uint64_t number = in.varint();
    if (number != 0) step = traces_.child(number - 1);
  }
  return step != nullptr && !wire::is_allocation(step->key);
}

void Session::execute(wire::Reader& in) {
  if (following_ > 0) {
    --following_;
    if (traces_.likely() == nullptr) throw wire::WireError("a FOLLOW beyond what came before");
    changes_.clear();
    return take_again(*traces_.likely());
  }
  const uint8_t opcode = in.u8();
  const Command& command = command_of(opcode);
  switch (command.place) {
    case Command::Place::kUnknown:
      throw wire::WireError("an unknown command " + std::to_string(opcode));
    case Command::Place::kAmongSteps:
      break;
    case Command::Place::kBetween:
      segments_.release(freed_);
      break;
    case Command::Place::kEndsSegment:
      segments_.release(freed_);
      end_segment();
  }
  command.carry_out(*this, in);
  recomputed_.end();
}

// What is defined.

void Session::define_operator(wire::Reader& in) {
  const uint8_t* encoded = in.position();
  templates_.define_operator(in);
  if (gang_.is_on()) gang_.gang().templates().define_operator(encoded, static_cast<size_t>(in.position() - encoded));
}

void Session::define_template(wire::Reader& in) {
  const auto source = templates_.define(in, segments_.describes());
  if (gang_.is_on()) gang_.gang().templates().define_template(source, templates_.operator_of(source));
}

void Session::forget(bool all) {
  recomputed_.settle();
  gang_.forget();
  segments_.forget();
  templates_.forget();
  traces_.clear();
  if (!all) return;
  gang_.forget_operators();
  templates_.forget_operators();
  user_code_.kernels.forget();
  user_code_.programs.forget();
  timing_.begin(0);
  settings(wire::kSettingsDefault);
  traces_.reset();
  freed_.clear();
  freed_all_ = false;
}

// Steps.

void Session::step(wire::Reader& in) {
  const uint64_t number = in.varint();
  wire::Step* step = number == 0 ? traces_.likely() : traces_.child(number - 1);
  if (step == nullptr) throw wire::WireError("a STEP that did not come before");
  wire::get_changes(in, step->slots.size(), changes_);
  take_again(*step);
}

void Session::call(wire::Reader& in) {
  const uint64_t number = in.varint();
  const Plan& plan = templates_.at(number);
  if (plan.tells) throw wire::WireError("a CALL of a template whose outputs only an ASK can tell");
  read_words(plan.words, in, words_);
  take_new(wire::call_key(number), plan.words);
}

void Session::allocate(wire::Reader& in) {
  read_words(kAllocationKinds, in, words_);
  take_new(wire::allocation_key(in.bounded(wire::kStorageBytesMax, "the size of a storage")), kAllocationKinds);
}

void Session::free(wire::Reader& in) {
  const size_t count = in.count(wire::kStoragesMax, "the number of storages");
  for (size_t index = 0; index < count; ++index) {
    freed_.push_back(in.varint());
    if (!segments_.is_deferring()) storages_.free(freed_.back());
  }
  if (count == 0) freed_all_ = true;
}

void Session::take_again(wire::Step& step) {
  const bool is_deferred = segments_.defers(step, freed_);
  traces_.expect(step, changes_, words_);
  if (!freed_all_ && traces_.expects_more_freed(step, freed_)) {
    const size_t told = freed_.size();
    traces_.expect_freed(step, told, freed_);
    for (size_t index = told; index < freed_.size() && !(is_deferred && segments_.has_begun()); ++index) storages_.free(freed_[index]);
  }
  const uint64_t key = step.key;
  traces_.take(step, words_, freed_);
  freed_.clear();
  freed_all_ = false;
  if (!segments_.note_step(&step, is_deferred)) run(key, words_);
}

void Session::take_new(uint64_t key, const std::vector<wire::Word>& kinds) {
  const wire::Step* known = traces_.find(key);
  if (known == nullptr) segments_.release(freed_);
  const bool is_deferred = known != nullptr && segments_.defers(*known, freed_);
  wire::Step* step = traces_.come(key, kinds, words_, freed_);
  freed_.clear();
  freed_all_ = false;
  if (!segments_.note_step(step, is_deferred)) run(key, words_);
}

void Session::end_segment() {
  segments_.end(freed_);
  traces_.cut();
}

void Session::cut(wire::Reader& in) {
  if (in.u8() == 0) return;
  segments_.forget();
  traces_.clear();
}

// Tier 1.

void Session::run(uint64_t key, const wire::Words& words) {
  const uint64_t value = wire::key_value(key);
  if (wire::is_allocation(key)) {
    storages_.check_new(words.front());
    return effects_.commit({effects_.next_call(), kAllocationKinds, words, make_storage(words.front(), static_cast<int64_t>(value))});
  }
  Plan& plan = templates_.known(value);
  transfers_.note_call();
  const uint64_t sequence = effects_.begin_call();
  effects_.commit({sequence, plan.words, words, carry_out(value, plan, words, sequence)});
  recomputed_.end();
}

Cause Session::carry_out(uint64_t number, Plan& plan, const wire::Words& words, uint64_t sequence) {
  if (effects_.stopped()) {
    caller_.skip(plan, words);
    return effects_.stopped();
  }
  const RecordedCall::Call call{number, plan, words, sequence};
  if (Cause cause = recomputed_.prepare(plan, words, sequence)) return cause;
  checkpoints_.begin_call(plan, words);
  if (gang_.is_on()) {
    Cause cause = gang_.call(number, plan, words, sequence);
    if (!cause) recomputed_.note(call, !gang_.took_batch());
    return cause;
  }
  caller_.bind(plan, words);
  Cause cause;
  if (const Cause& before = effects_.lost() ? effects_.lost() : caller_.unusable()) {
    cause = effects_.announced(effects_.stop_after(*before));
  } else {
    try {
      const TimedCall timed(timing_, sequence);
      checkpoints_.run(call);
      return nullptr;
    } catch (const wire::WireError&) {
      throw;
    } catch (...) {
      cause = effects_.announced(effects_.stop_now(plan.op.schema().name(), sequence, &plan));
    }
  }
  caller_.withdraw();
  return cause;
}

Cause Session::make_storage(uint64_t id, int64_t bytes) {
  if (effects_.stopped()) return effects_.stopped();
  try {
    recomputed_.begin_allocation(bytes);
    storages_.check_room(bytes);
    storages_.insert(id, bytes);
    if (gang_.is_on()) gang_.gang().note_new(id);
    recomputed_.note_allocation(id);
    return nullptr;
  } catch (const CommandError& error) {
    return effects_.announced(effects_.stop(error, "ALLOCATE", effects_.next_call()));
  }
}

void Session::ask(wire::Reader& in) {
  const uint64_t request = in.varint();
  const uint64_t first_storage = in.varint();
  Plan& plan = templates_.at(in.varint());
  read_words(plan.words, in, words_);
  const uint64_t sequence = effects_.begin_call();
  if (effects_.stopped()) {
    caller_.skip_question(plan, words_);
    return effects_.report(request, *effects_.stopped());
  }
  wire::Writer outputs;
  outputs.reply(wire::Reply::kOutputs);
  outputs.varint(request);
  if (const Cause cause = answer(plan, first_storage, sequence, outputs)) return effects_.report(request, *cause);
  replies_.send(outputs, nullptr, 0);
}

// Results are made for this question alone: its client has no ids of what a failure keeps from being made.
Cause Session::answer(Plan& plan, uint64_t first_storage, uint64_t sequence, wire::Writer& answer) {
  const uint64_t since_ns = gang_.work().clock();
  if (const Cause cause = recomputed_.prepare(plan, words_, sequence, /*is_question=*/true)) return cause;
  checkpoints_.begin_call(plan, words_, /*is_question=*/true);
  if (gang_.is_on()) {
    if (const Cause cause = gang_.gather_question(plan, words_, sequence)) return cause;
  }
  caller_.bind(plan, words_);
  if (const Cause& before = effects_.lost() ? effects_.lost() : caller_.unusable()) return effects_.stop_after(*before);
  try {
    const TimedCall timed(timing_, sequence);
    caller_.run_and_tell(plan, first_storage, answer);
    if (gang_.is_on()) gang_.work().book(gang_.work().alone(plan.op, wire::Alone::kSizes), since_ns);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.withdraw();
    return effects_.stop_now(plan.op.schema().name(), sequence, &plan);
  }
  effects_.commit({sequence, plan.words, words_, nullptr});
  return nullptr;
}

// The whole session.

void Session::settle() {
  segments_.release(freed_);
  gang_.settle();
  try {
    const GangWork::Wait wait(gang_.work());
    device_.synchronize();
  } catch (...) {
    effects_.stop_now("device", effects_.next_call());
  }
}

void Session::settings(uint64_t bits) {
  const uint64_t of_device = bits & ~static_cast<uint64_t>(wire::kCompiled | wire::kRecomputed);
  const bool recomputes = bits & wire::kRecomputed && device_.computes();
  auto use = bits & wire::kCompiled ? LibraryUse::kAtOnce : bits & wire::kDeterministic ? LibraryUse::kNone : LibraryUse::kMade;
  if (recomputes) use = LibraryUse::kNone;
  segments_.settle_wish(use, device_.is_host() && !gang_.is_on() && replies_.can_share());
  if (gang_.is_on()) gang_.gang().settings(of_device);
  if (recomputes) checkpoints_.yield_to_recomputation();
  recomputed_.heed(recomputes);
  if (device_.is_host()) return;
  segments_.drop_graphs();  // they were recorded under others
  apply_settings(of_device);
}

void Session::set_limit(int64_t bytes) {
  given_bytes_ = bytes;
  hold_to(bytes);
}

void Session::hold_to(int64_t bytes) {
  const int64_t part = gang_.is_on() ? gang_.gang().memory().part_of(bytes) : bytes;
  storages_.set_limit(bytes);
  checkpoints_.make_room();
  set_host_limit(part);
  if (device_.is_host()) fence_process(bytes);
  device_.limit_memory(part);
  if (gang_.is_on()) gang_.gang().limit(part);
}

int64_t Session::park(const ParkingSpace& space, const std::string& spill_directory) {
  segments_.drop_graphs();
  collectives_.leave_device();
  if (gang_.is_on()) {
    gang_.gang().sums().leave_device();
    gang_image_.note_parked();
  }
  gang_.park();
  const int64_t spilled = storages_.park(space, spill_directory);
  checkpoints_.park(space.host_bytes - (storages_.used_bytes() - spilled));
  return spilled;
}

void Session::restore() {
  if (!storages_.parked()) return;
  gang_.return_memory();
  if (gang_image_.restore_parked()) return;
  gang_.restore();
  storages_.restore();
}

void Session::send_image(Packing packing, const SendImage& send) {
  const bool is_divided = gang_image_.is_on();
  const auto products = recomputed_.packed();
  const bool with_freed = !products.empty();  // of which others are made again
  const Snapshot now{effects_.next_call(), effects_.failures(), is_divided ? gang_image_.items(with_freed) : storages_.items(with_freed)};
  const auto segments = segments_.resumable(traces_);
  if (!segments.empty()) send(segment_states(segments), nullptr, 0);
  send_parts(wire::Reply::kProducts, products.data(), products.size(), send);
  PackedVersions versions = checkpoints_.packed(packing);
  send_head(now, effects_.stopped(), image_.libraries(), versions.are_known() ? &versions : nullptr, send);
  const auto hand_over = [&](const Storages::TakeBytes& take) {
    is_divided ? gang_image_.hand_over(now.items, take) : storages_.hand_over(now.items, take);
    versions.hand_over(take);
  };
  send_bytes(hand_over, send);
  if (is_divided) gang_image_.send(now.items, send);
}

void Session::report_segments(wire::Reader& in) {
  wire::Writer head;
  head.reply(wire::Reply::kSegments);
  head.varint(in.varint());
  wire::put_segments(head, segments_of(traces_, [this](uint64_t number) { return templates_.known(number).identity; },
                                       [this](const wire::Step& end, uint64_t calls) { return segments_.standing_of(end, calls); }));
  replies_.send(head, nullptr, 0);
}

}  // namespace forebay::worker
