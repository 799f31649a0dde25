#include "session/session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include <ATen/Parallel.h>
#include <forebay/bulk.h>

#include "base/memory.h"
#include "base/settings.h"
#include "call/description.h"
#include "call/operators.h"
#include "call/planner.h"
#include "tier2/segments.h"

namespace forebay::worker {

namespace {

using wire::Command;

constexpr uint64_t kLongMessagesMax = 16384;  // of one session; storages that were never made keep the message that says why
constexpr size_t kShortMessageBytes = 256;
constexpr const char* kDeviceLost = "the device failed; the tensors on it are lost, and new ones get a new session: ";
constexpr int64_t kPastCachesBytes = 4 << 20;  // storages that the caches of one processor do not hold

bool waits_for_lease(Command command) {
  switch (command) {
    case Command::kCall:
    case Command::kAsk:
    case Command::kResize:
    case Command::kWrite:
    case Command::kRead:
    case Command::kWriteShared:
    case Command::kReadShared:
    case Command::kCopy:
    case Command::kExchange:
    case Command::kReduce:
    case Command::kLaunch:
      return true;
    default:
      return false;
  }
}

// What may come between steps that are held back.
bool goes_with_steps(Command command) {
  switch (command) {
    case Command::kFollow:
    case Command::kStep:
    case Command::kCall:
    case Command::kAllocate:
    case Command::kFree:
    case Command::kOperator:
    case Command::kTemplate:
      return true;
    default:
      return false;
  }
}

// Of a template: its operator's schema, and what is written behind the operator's number.
uint64_t template_identity(const c10::OperatorHandle& op, wire::Reader in, const uint8_t* end) {
  in.varint();
  const auto* begin = reinterpret_cast<const char*>(in.position());
  return wire::identity_of({begin, static_cast<size_t>(end - in.position())}, wire::identity_of(c10::toString(op.schema())));
}

std::string encoded_of(wire::Reader in, const uint8_t* end) {
  in.varint();
  return {reinterpret_cast<const char*>(in.position()), static_cast<size_t>(end - in.position())};
}

// What a null device reads.
const std::vector<uint8_t>& zeros() {
  static const std::vector<uint8_t> bytes(wire::kChunkBytesMax);
  return bytes;
}

}  // namespace

Session::Session(Device& device, Replies& replies, GroupHost& group_host)
    : device_(device), replies_(replies), group_host_(group_host), storages_(device), caller_(device, storages_), timing_(device) {}

bool Session::is_device_work(wire::Reader in) const {
  const wire::Step* step = traces_.likely();
  if (following_ == 0) {
    const auto command = static_cast<Command>(in.u8());
    if (command != Command::kStep) return waits_for_lease(command);
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
    return take(*traces_.likely());
  }
  const uint8_t opcode = in.u8();
  if (holding_ != nullptr && !goes_with_steps(static_cast<Command>(opcode))) release();
  switch (static_cast<Command>(opcode)) {
    case Command::kFollow:
      return follow(in);
    case Command::kStep:
      return step(in);
    case Command::kCut:
      return cut(in);
    case Command::kTime:
      return timing_.begin(in.bounded(wire::kTimesMax, "the number of calls to time"));
    case Command::kTellTimes:
      return tell_times(in);
    case Command::kTellSegments:
      return tell_segments(in);
    case Command::kTellGang:
      return tell_gang(in);
    case Command::kSettings:
      return settings(in);
    case Command::kLimit:
      return limit(in);
    case Command::kHello:
      throw wire::WireError("a second HELLO");
    case Command::kOperator:
      return define_operator(in);
    case Command::kTemplate:
      return define_template(in);
    case Command::kCall:
      return call(in);
    case Command::kAsk:
      return ask(in);
    case Command::kAllocate:
      return allocate(in);
    case Command::kResize:
      return resize(in);
    case Command::kFree:
      return free(in);
    case Command::kWrite:
      return write(in);
    case Command::kRead:
      return read(in);
    case Command::kSync:
      return sync(in);
    case Command::kShare:
      return share(in);
    case Command::kWriteShared:
      return write_shared(in);
    case Command::kReadShared:
      return read_shared(in);
    case Command::kCopy:
      return copy(in);
    case Command::kForget:
      return forget();
    case Command::kHeard:
      return heard(in);
    case Command::kDoor:
      return open_door(in);
    case Command::kMember:
      return member(in);
    case Command::kExchange:
      return exchange(in);
    case Command::kReduce:
      return reduce(in);
    case Command::kPart:
      return part(in);
    case Command::kKernel:
      return define_kernel(in);
    case Command::kLaunch:
      return launch(in);
    default:
      throw wire::WireError("an unknown command " + std::to_string(opcode));
  }
}

void Session::set_limit(int64_t bytes) {
  given_bytes_ = bytes;
  hold_to(bytes);
}

void Session::hold_to(int64_t bytes) {
  const int64_t part = gang_ ? gang_->part_of(bytes) : bytes;
  storages_.set_limit(bytes);
  set_host_limit(part);
  if (device_.is_host()) fence_process(bytes);
  device_.limit_memory(part);
  if (gang_) gang_->limit(part);
}

// As the first worker of a gang says.
void Session::limit(wire::Reader& in) {
  hold_to(static_cast<int64_t>(std::min(in.varint(), static_cast<uint64_t>(given_bytes_))));
  device_.release_cache();
}

void Session::settle() {
  release();
  settle_gang();
  try {
    const GangWork::Wait wait(work_);
    device_.synchronize();
  } catch (...) {
    stop_now("device", sequence_);
  }
}

int64_t Session::park(const ParkingSpace& space, const std::string& spill_directory) {
  drop_graphs();
  if (data_parallel_) data_parallel_->park();
  if (gang_) {
    gang_->fetch_all();
    gang_->limit(0);
    gang_->flush();
  }
  return storages_.park(space, spill_directory);
}

void Session::restore() {
  if (!storages_.parked()) return;
  if (gang_) {
    gang_->limit(gang_->part_of(storages_.limit_bytes()));
    gang_->spread();
  }
  storages_.restore();
}

void Session::define_operator(wire::Reader& in) {
  const uint8_t* encoded = in.position();
  const std::string name = in.string();
  const std::string overload = in.string();
  const uint64_t hash = in.u64();
  if (gang_) gang_->define_operator(encoded, static_cast<size_t>(in.position() - encoded));
  if (operators_.size() >= wire::kOperatorsMax) throw wire::WireError("more than " + std::to_string(wire::kOperatorsMax) + " operators");
  operators_.push_back(resolve(name, overload, hash));
}

void Session::define_template(wire::Reader& in) {
  const wire::Reader before = in;
  const auto source = wire::get_template(in);
  if (source.op >= operators_.size()) throw wire::WireError("operator " + std::to_string(source.op) + " is not defined");
  if (plans_.size() >= wire::kTemplatesMax) throw wire::WireError("more than " + std::to_string(wire::kTemplatesMax) + " templates; FORGET comes first");
  auto plan = make_plan(source, operators_[source.op], device_, layouts_);
  plan_items_ += plan->items;
  plan_bytes_ += before.left() - in.left();
  plan->identity = template_identity(plan->op, before, in.position());
  if (due_ns_) plan->encoded = encoded_of(before, in.position());
  if (plan_items_ > wire::kTemplatesItemsMax || plan_bytes_ > wire::kTemplatesBytesMax) {
    throw wire::WireError("templates of " + std::to_string(plan_items_) + " items and " + std::to_string(plan_bytes_) + " bytes; FORGET comes first");
  }
  plans_.push_back(std::move(plan));
  if (gang_) gang_->define_template(source, operators_[source.op]);
}

void Session::forget() {
  if (gang_) gang_->forget();
  if (data_parallel_) data_parallel_->forget();
  drop_candidates();
  plans_.clear();
  layouts_.clear();
  plan_items_ = 0;
  plan_bytes_ = 0;
  traces_.clear();
}

Plan& Session::plan_of(uint64_t number) {
  if (number >= plans_.size()) throw wire::WireError("template " + std::to_string(number) + " is not defined");
  return *plans_[number];
}

Cause Session::stop(Failure failure) {
  const size_t most = failures_++ < kLongMessagesMax ? wire::kMessageBytesMax : kShortMessageBytes;
  failure.number = failures_;
  if (gang_ && failure.code == wire::FailureCode::kOutOfMemory) failure.message = gang_->out_of_memory_text(failure.message);
  failure.message = told_text(std::move(failure.message), most);
  failure.inputs = told_text(std::move(failure.inputs), most);
  stopped_ = std::make_shared<const Failure>(std::move(failure));
  return stopped_;
}

Cause Session::stop(const CommandError& error, const std::string& op, uint64_t sequence) { return stop({0, error.code, sequence, op, error.what(), ""}); }

Cause Session::stop_now(const std::string& op, uint64_t sequence, const Plan* plan) {
  bool by_device = false;
  const auto error = command_error_of_current_exception(by_device);
  const bool device_lost = by_device && !device_.recovers();
  const auto code = device_lost ? wire::FailureCode::kDeviceLost : error.code;
  auto cause = stop({0, code, sequence, op, (device_lost ? kDeviceLost : "") + std::string(error.what()), plan == nullptr ? "" : inputs_of(*plan)});
  if (device_lost && !lost_) lost_ = cause;
  return cause;
}

Cause Session::announced(Cause cause) {
  tell(0, *cause);
  return cause;
}

void Session::heard(wire::Reader& in) {
  const uint64_t number = in.bounded(failures_, "the number of a failure");
  if (stopped_ && stopped_->number == number) stopped_.reset();
}

void Session::tell(uint64_t request, const Failure& failure) {
  wire::Writer head;
  head.reply(wire::Reply::kFailure);
  head.varint(request);
  head.varint(failure.number);
  head.u8(static_cast<uint8_t>(failure.code));
  head.u64(failure.sequence);
  head.string(failure.op);
  head.string(failure.message);
  head.string(failure.inputs);
  replies_.send(head, nullptr, 0);
}

namespace {

// Of what uses something that was never made; of the same number: none, where nothing fails again by it.
Failure derived(const Failure& cause) {
  Failure failure = cause;
  failure.number = 0;
  failure.code = wire::FailureCode::kNeverMade;
  return failure;
}

}  // namespace

Cause Session::stop_after(const Failure& cause) { return stop(derived(cause)); }

void Session::read_words(const std::vector<wire::Word>& kinds, wire::Reader& in) {
  words_.clear();
  for (const wire::Word kind : kinds) words_.push_back(wire::get_word(in, kind));
}

void Session::call(wire::Reader& in) {
  const uint64_t number = in.varint();
  const Plan& plan = plan_of(number);
  if (plan.tells) throw wire::WireError("a CALL of a template whose outputs only an ASK can tell");
  read_words(plan.words, in);
  come(wire::call_key(number), plan.words);
}

void Session::call(uint64_t number) {
  Plan& plan = *plans_[number];
  moves_bulk_ = false;
  const uint64_t sequence = sequence_++;
  if (stopped_) return caller_.skip(plan, words_, stopped_);
  if (gang_) return call_in_gang(number, sequence);
  caller_.bind(plan, words_);
  if (const Cause& before = lost_ ? lost_ : caller_.unusable()) return caller_.fail(announced(stop_after(*before)));
  try {
    const TimedCall timed(timing_, sequence);
    caller_.run(plan);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.fail(announced(stop_now(plan.op.schema().name(), sequence, &plan)));
  }
}

void Session::ask(wire::Reader& in) {
  const uint64_t request = in.varint();
  const uint64_t first_storage = in.varint();
  Plan& plan = plan_of(in.varint());
  end_segment();
  read_words(plan.words, in);
  const uint64_t sequence = sequence_++;
  if (stopped_) {
    caller_.skip_question(plan, words_);
    return tell(request, *stopped_);
  }
  const uint64_t since_ns = work_.clock();
  if (gang_ && !gathered_here(request, plan, sequence)) return;
  caller_.bind(plan, words_);
  if (const Cause& before = lost_ ? lost_ : caller_.unusable()) return tell(request, *stop_after(*before));
  wire::Writer told;
  told.reply(wire::Reply::kOutputs);
  told.varint(request);
  try {
    const TimedCall timed(timing_, sequence);
    caller_.run_and_tell(plan, first_storage, told);
    if (gang_) work_.book(work_.alone(plan.op, wire::Alone::kSizes), since_ns);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    caller_.withdraw();
    return tell(request, *stop_now(plan.op.schema().name(), sequence, &plan));
  }
  replies_.send(told, nullptr, 0);
}

void Session::allocate(wire::Reader& in) {
  static const std::vector<wire::Word> kinds{wire::Word::kNew};
  read_words(kinds, in);
  come(wire::allocation_key(in.bounded(wire::kStorageBytesMax, "the size of a storage")), kinds);
}

void Session::allocate(uint64_t id, int64_t bytes) {
  storages_.check_new(id);
  if (stopped_) return storages_.insert_failed(id, stopped_);
  try {
    storages_.check_room(bytes);
    storages_.insert(id, bytes);
    if (gang_) gang_->note_new(id);
  } catch (const CommandError& error) {
    storages_.insert_failed(id, announced(stop(error, "ALLOCATE", sequence_)));
  }
}

void Session::resize(wire::Reader& in) {
  end_segment();
  const uint64_t id = in.varint();
  const auto bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
  Entry& entry = storages_.at(id);
  if (gang_ && !stopped_) settle_gang();
  if (stopped_ && bytes <= entry.bytes()) return;  // what it holds stays
  try {
    make_whole({id});
    if (gang_) gang_->gather({id}, 0);
    storages_.resize(id, bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    entry.fall_short(stopped_ ? stopped_ : announced(stop_now("RESIZE", sequence_)));
  }
}

void Session::free(wire::Reader& in) {
  const size_t count = in.count(wire::kStoragesMax, "the number of storages");
  for (size_t index = 0; index < count; ++index) {
    freed_.push_back(in.varint());
    if (holding_ == nullptr) storages_.free(freed_.back());
  }
  if (count == 0) freed_all_ = true;
}

void Session::check_range(const Entry& entry, uint64_t offset, size_t bytes, const char* what) const {
  const auto size = static_cast<uint64_t>(entry.bytes());
  if (offset <= size && bytes <= size - offset) return;
  if (entry.shortfall()) throw CommandError(entry.shortfall()->code, entry.shortfall()->message);
  throw wire::WireError(std::string(what) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a storage of " +
                        std::to_string(size) + " bytes");
}

void Session::write(wire::Reader& in) {
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  const uint8_t* data = in.raw(bytes);
  const auto upload = begin_upload(id, offset, bytes);
  if (!upload) return;
  std::memcpy(upload->target(), data, bytes);
  finish_upload(*upload);
}

std::optional<Session::Upload> Session::begin_upload(uint64_t storage, uint64_t offset, size_t bytes) {
  end_segment();
  Entry& entry = storages_.at(storage);
  if (gang_ && !stopped_) settle_gang();
  if (stopped_) return std::nullopt;
  if (const Cause& before = lost_ ? lost_ : entry.cause()) {
    announced(stop_after(*before));
    return std::nullopt;
  }
  try {
    check_range(entry, offset, bytes, "a WRITE");
    if (!device_.computes() || bytes == 0) return std::nullopt;
    const bool all = offset == 0 && static_cast<int64_t>(bytes) == entry.bytes();
    const auto at = static_cast<int64_t>(offset), size = static_cast<int64_t>(bytes);
    make_whole({storage});
    if (gang_) gang_->give_home(storage);
    if (data_parallel_ && at == 0) data_parallel_->note_upload(storage);
    if (entry.home() != 0) return Upload{storage, at, size, device_.allocate_parked(size), 0};
    const auto& memory = all ? entry.touch_unwritten(device_) : entry.touch(device_);
    if (device_.is_host()) return Upload{storage, at, size, memory, at};
    return Upload{storage, at, size, device_.allocate_staging(size), 0};
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    announced(stop_now("WRITE", sequence_));
    return std::nullopt;
  }
}

void Session::finish_upload(const Upload& upload) {
  Entry& entry = storages_.at(upload.storage);
  try {
    if (entry.home() != 0) return gang_->write(upload.storage, entry, upload.offset, upload.target(), upload.bytes);
    const auto& memory = entry.touch(device_);
    if (memory.is_alias_of(upload.memory)) return;
    device_.copy(memory, upload.offset, upload.memory, upload.at, upload.bytes);
    if (upload.offset == 0 && !gang_) storages_.keep_upload(upload.storage, upload.target(), upload.bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    announced(stop_now("WRITE", sequence_));
  }
}

std::optional<const void*> Session::readable(uint64_t request, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held) {
  Entry& entry = storages_.at(id);
  if (gang_ && !stopped_) settle_gang();
  if (const Cause& before = stopped_ ? stopped_ : lost_ ? lost_ : entry.cause()) {
    tell(request, stopped_ ? *stopped_ : derived(*before));
    return std::nullopt;
  }
  try {
    check_range(entry, offset, bytes, "a READ");
    if (!device_.computes() || bytes == 0) return zeros().data();
    make_whole({id}, /*only_read=*/true);
    if (entry.home() != 0) {
      held = device_.allocate_parked(static_cast<int64_t>(bytes));
      gang_->read(id, entry, static_cast<int64_t>(offset), static_cast<int64_t>(bytes), static_cast<uint8_t*>(held.mutable_data()));
      return held.data();
    }
    const auto& memory = entry.touch(device_);
    if (device_.is_host()) {
      held = memory;
      return static_cast<const uint8_t*>(memory.data()) + offset;
    }
    held = device_.allocate_staging(static_cast<int64_t>(bytes));
    device_.copy(held, 0, memory, static_cast<int64_t>(offset), static_cast<int64_t>(bytes));
    const GangWork::Wait wait(work_);
    device_.synchronize();
    return held.data();
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    tell(request, *stop_now("READ", sequence_));
    return std::nullopt;
  }
}

void Session::read(wire::Reader& in) {
  end_segment();
  const uint64_t request = in.varint();
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  c10::Storage held(nullptr);
  const auto data = readable(request, id, offset, bytes, held);
  if (!data) return;
  wire::Writer head;
  head.reply(wire::Reply::kData);
  head.varint(request);
  head.varint(replies_.busy_ns());
  head.varint(bytes);
  replies_.send(head, *data, bytes);
}

void Session::sync(wire::Reader& in) {
  end_segment();
  const uint64_t request = in.varint();
  settle();
  if (stopped_) return tell(request, *stopped_);
  done(request);
}

void Session::tell_times(wire::Reader& in) {
  const uint64_t request = in.varint();
  wire::Writer head;
  head.reply(wire::Reply::kTimes);
  head.varint(request);
  timing_.tell(head);
  replies_.send(head, nullptr, 0);
}

void Session::tell_segments(wire::Reader& in) {
  wire::Writer head;
  head.reply(wire::Reply::kSegments);
  head.varint(in.varint());
  wire::put_segments(head, segments_of(traces_, [this](uint64_t number) { return plans_[number]->identity; },
                                       [this](const wire::Step& end, uint64_t calls) { return standing_of(end, calls); }));
  replies_.send(head, nullptr, 0);
}

void Session::settings(wire::Reader& in) {
  const uint64_t bits = in.bounded(wire::kSettingsMax, "the settings");
  end_segment();
  wants_libraries_ = bits & wire::kCompiled;
  if (threads_) at::set_num_threads(threads_->most());
  threads_.reset();
  const int threads = at::get_num_threads();
  if (wants_libraries_ && device_.is_host() && !gang_ && replies_.can_share() && takes_all_processors(threads)) threads_.emplace(threads);
  if (gang_) gang_->settings(bits & ~static_cast<uint64_t>(wire::kCompiled));
  if (device_.is_host()) return;
  drop_graphs();  // they were recorded under others
  apply_settings(bits & ~static_cast<uint64_t>(wire::kCompiled));
}

// Bulk data beside the socket.

void Session::share(wire::Reader& in) {
  const uint64_t request = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kSharedBytesMax, "the size of a shared area"));
  if (bytes <= wire::kSharedHeaderBytes) throw wire::WireError("a shared area of " + std::to_string(bytes) + " bytes has no room for payload");
  if (shared_) throw wire::WireError("a second SHARE");
  if (replies_.can_share()) {
    try {
      shared_.emplace(bytes);
    } catch (const std::system_error&) {  // the host has no descriptor or memory left: the socket serves as well
    }
  }
  wire::Writer head;
  head.reply(wire::Reply::kShared);
  head.varint(request);
  head.varint(shared_ ? bytes : 0);
  if (shared_) return replies_.share(head, shared_->descriptor());
  replies_.send(head, nullptr, 0);
}

SharedMemory& Session::shared() {
  if (!shared_) throw wire::WireError("there is no shared area; SHARE comes first");
  return *shared_;
}

void Session::write_shared(wire::Reader& in) {
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  const uint8_t* data = shared().at(in.varint(), bytes);
  const auto upload = begin_upload(id, offset, bytes);
  if (upload) copy_out(upload->target(), data, bytes, storages_.at(id).bytes() >= kPastCachesBytes);
  shared_->taken();
  moves_bulk_ = true;
  if (upload) finish_upload(*upload);
}

void Session::read_shared(wire::Reader& in) {
  end_segment();
  const uint64_t request = in.varint();
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  uint8_t* target = shared().at(in.varint(), bytes);
  c10::Storage held(nullptr);
  const auto data = readable(request, id, offset, bytes, held);
  if (!data) return;
  std::memcpy(target, *data, bytes);
  moves_bulk_ = true;
  done(request);
}

// All before it is done.
void Session::done(uint64_t request) {
  wire::Writer head;
  head.reply(wire::Reply::kDone);
  head.varint(request);
  head.varint(replies_.busy_ns());
  replies_.send(head, nullptr, 0);
}

void Session::copy(wire::Reader& in) {
  end_segment();
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const uint64_t source_id = in.varint();
  const uint64_t source_offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
  if (id == source_id) throw wire::WireError("a COPY of storage " + std::to_string(id) + " to itself");
  Entry& entry = storages_.at(id);
  Entry& source = storages_.at(source_id);
  if (gang_ && !stopped_) settle_gang();
  if (stopped_) return;
  if (const Cause& before = lost_ ? lost_ : source.cause() ? source.cause() : entry.cause()) {
    announced(stop_after(*before));
    return;
  }
  try {
    check_range(source, source_offset, bytes, "a COPY");
    check_range(entry, offset, bytes, "a COPY");
    if (!device_.computes() || bytes == 0) return;
    make_whole({id, source_id});
    if (gang_ && gathered({std::min(id, source_id), std::max(id, source_id)}, 0).value() != 0) {
      return gang_->copy(id, static_cast<int64_t>(offset), source_id, static_cast<int64_t>(source_offset), static_cast<int64_t>(bytes));
    }
    const bool all = offset == 0 && static_cast<int64_t>(bytes) == entry.bytes();
    const auto& target = all ? entry.touch_unwritten(device_) : entry.touch(device_);
    device_.copy(target, static_cast<int64_t>(offset), source.touch(device_), static_cast<int64_t>(source_offset), static_cast<int64_t>(bytes));
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    announced(stop_now("COPY", sequence_));
  }
}

}  // namespace forebay::worker
