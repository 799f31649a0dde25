#include "stream/handover.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>

#include "base/profile.h"
#include "base/publication.h"
#include "base/python.h"
#include "base/settings.h"
#include "base/waiting.h"
#include "forebay/checkpoints.h"
#include "replay/frames.h"
#include "stream/handshake.h"

namespace forebay {

using wire::Command;
using wire::Reply;

namespace {

constexpr std::chrono::seconds kGreetingPatience(10);

}  // namespace

Welcome Handover::connect(const std::string& address, const std::string& ticket, std::optional<uint64_t> meeting, const Credentials& credentials) {
  TORCH_CHECK(ticket.size() == wire::kTicketBytes, "a ticket has ", wire::kTicketBytes, " bytes, not ", ticket.size());
  TORCH_CHECK(!stream_.session_.connected || stream_.session_.away, "the virtual device is connected already");
  const WithoutGil free;
  const std::scoped_lock lock(stream_.receiver_.mutex(), stream_.sender_.mutex());
  const bool goes_on = stream_.session_.away;
  stream_.session_.entering = goes_on && !stream_.session_.broken;
  const auto kept = c10::make_scope_exit([this] {  // what this worker answered counts once it has taken the session over
    const bool was_entering = stream_.session_.entering.exchange(false);
    if (!stream_.session_.broken) return;
    stream_.receiver_.set_answered(answered_);
    if (was_entering) stream_.session_.broken = false;  // the next worker may have what this one had, and is to be told as little
  });
  {
    const std::lock_guard recording(stream_.commands_.mutex());
    stream_.commands_.meetings().begin(meeting);
  }
  if (!goes_on) {
    stream_.sender_.clear();
    stream_.downloads_.clear();
    stream_.contents_.clear();
    stream_.shared_.unmap();
    stream_.commands_.meetings().clear();
    stream_.journal_.begin(compiles_at_once() ? 0 : stream_.journal_bytes_max_.load());  // a worker that did the same again would not round as this one
    stream_.images_.begin_session();
    stream_.receiver_.begin(stream_.generation(), stream_.journal_.is_whole());
  }
  const Welcome welcome = greet(address, ticket, credentials);
  const uint64_t kind = std::hash<std::string>()(welcome.torch + " " + welcome.kind + " " + welcome.model);
  const wire::Begun begun = welcome.images ? welcome.images->begun : stream_.session_.broken ? wire::Begun::kNothing : wire::Begun::kMoved;
  const bool replays = goes_on && needs_replay(begun, welcome.images);
  if (replays && kind != stream_.worker_.kind && stream_.journal_.bytes() > 0) give_up("the worker is gone, and a device of another model (" + welcome.model + ") might round otherwise");
  stream_.worker_.is_cpu = welcome.kind == "cpu";
  stream_.worker_.is_gpu = welcome.kind == "cuda" || welcome.kind == "hip" || welcome.kind == "null";
  stream_.worker_.kind = kind;
  stream_.worker_.keeps_checkpoints = welcome.keeps_checkpoints;
  stream_.worker_.copies_checkpoints = welcome.copies_checkpoints;
  stream_.worker_.carries_checkpoints = welcome.carries_checkpoints;
  stream_.worker_.tells_images = welcome.images.has_value();
  if (address.rfind("unix:", 0) != 0 || !share_memory(stream_.sender_, stream_.receiver_, stream_.connection_, stream_.shared_, stream_.new_request())) {
    if (stream_.session_.broken && stream_.downloads_.in_progress()) give_up("the worker is gone, and another host has no memory for the downloads that were under way");
    stream_.shared_.unmap();
  }
  if (replays) {
    stream_.session_.entering = false;
    replay(begun == wire::Begun::kNothing);
  }
  stream_.images_.begin(welcome.keeps_images);
  stream_.session_.origin = 0;
  note_session(stream_.device_);
  stream_.session_.connected = true;
  {
    const std::lock_guard recording(stream_.commands_.mutex());
    stream_.worker_.no_kernels = welcome.no_kernels;
    if (goes_on && begun != wire::Begun::kMoved) stream_.last_fork_ = {};  // it is in no image
    stream_.session_.away = stream_.session_.broken = false;
  }
  stream_.ticker_.start();
  stream_.wakeup_.wake();
  return welcome;
}

// A worker that is reached is greeted again where the connection breaks before it has answered: it was told nothing else.
Welcome Handover::greet(const std::string& address, const std::string& ticket, const Credentials& credentials) {
  const auto until = std::chrono::steady_clock::now() + kGreetingPatience;
  for (;;) {
    stream_.sender_.begin();
    stream_.receiver_.resume();
    Welcome welcome;
    std::chrono::milliseconds grace{};
    try {
      stream_.connection_.open(address, credentials);
      send_hello(stream_.sender_, ticket);
      receive_welcome(stream_.receiver_, [&](wire::Reader& body) {
        welcome = {body.string(), body.string(), body.string(), body.varint(), body.done() ? "the worker's release takes none" : body.string()};
        grace = std::chrono::milliseconds(body.done() ? 0 : body.bounded(wire::kGraceMsMax, "a worker's grace"));
        welcome.keeps_images = !body.done() && body.u8() != 0;
        const uint8_t checkpoints = body.done() ? 0 : body.u8();
        welcome.keeps_checkpoints = checkpoints >= wire::kKeepsCheckpoints;
        welcome.copies_checkpoints = checkpoints == wire::kCopiesCheckpoints || checkpoints == wire::kCarriesCheckpoints;
        welcome.carries_checkpoints = checkpoints >= wire::kCarriesCheckpoints;
        if (!body.done()) welcome.images = wire::get_session_images(body);
      });
      stream_.connection_.greeted(ticket, grace);
      return welcome;
    } catch (const GreetingCut& cut) {
      stream_.connection_.close();
      TORCH_CHECK(std::chrono::steady_clock::now() < until, "the connection to the worker broke (", cut.what(), ")");
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    } catch (...) {
      stream_.connection_.close();
      throw;
    }
  }
}

// Settles what the journal begins with, by what the worker has of the session. A release that does not say so has what the session left, unless that is lost.
bool Handover::needs_replay(wire::Begun begun, const std::optional<wire::SessionImages>& images) {
  const bool was_told = stream_.session_.broken;  // a worker that has what the session left has it without what was sent since
  auto& journal = stream_.journal_;
  if (begun != wire::Begun::kNothing) {
    if (was_told && !journal.begins_where_it_left()) give_up("the worker is gone, and the next one has what the session was before its last image");
    if (journal.awaits_last_image()) journal.image_kept();
    return was_told;
  }
  if (journal.awaits_last_image()) {
    const uint64_t answered = stream_.downloads_.in_progress() ? answered_ : std::numeric_limits<uint64_t>::max();  // whether nobody waits for what came before it
    images ? journal.choose(images->there, answered) : journal.image_kept();
    if (!journal.is_whole()) give_up("the worker is gone, and no image of the session is there");
  }
  if (journal.renumbers() && !images) give_up("the worker is gone, and the next one's release cannot be sent what it was sent");
  return true;
}

bool Handover::leave() {
  const WithoutGil free;
  const std::lock_guard receive_lock(stream_.receiver_.mutex());
  const auto& session = stream_.session_;
  if (!session.connected || session.away || session.broken || session.torn > 0) return false;
  const uint64_t request = stream_.new_request();
  end_stream(request);
  stream_.sender_.flush(Wait::kYes);
  stream_.receiver_.receive(request, [](Reply, wire::Reader&) {});
  const std::lock_guard send_lock(stream_.sender_.mutex());
  stream_.connection_.say_bye();
  stream_.connection_.close();
  stream_.downloads_.drop();
  stream_.shared_.unmap();
  return true;
}

void Handover::end_stream(uint64_t request) {
  const std::lock_guard send_lock(stream_.sender_.mutex());
  const std::lock_guard lock(stream_.commands_.mutex());
  stream_.commands_.tracer().say_frees();
  stream_.images_.lose(stream_.journal_);  // what the worker may yet say of one comes too late
  const uint64_t image = stream_.commands_.meetings().are_known() ? 0 : stream_.images_.ask_last(stream_.journal_, stream_.lease_.worked());
  stream_.sender_.take_last(framed([&](wire::Writer& out) {
    out.command(Command::kLeave);
    out.varint(request);
    if (image != 0) out.varint(image);  // a worker of a former release keeps none, and does not know it
    if (image != 0 && stream_.worker_.tells_images) out.varint(stream_.journal_.image());
  }));
  stream_.journal_.leave(image, request);
  stream_.commands_.forget();
  if (auto* knowledge = stream_.failures_.knowledge()) knowledge->forget();
  stream_.lease_.stop();
  stream_.session_.away = true;
}

bool Handover::break_off() {
  const WithoutGil free;
  if (!stream_.goes_on()) return false;
  stream_.session_.broken = true;
  stream_.lease_.close();
  stream_.connection_.shut_down();  // whoever waits for the worker stops
  const std::scoped_lock locks(stream_.receiver_.mutex(), stream_.sender_.mutex());
  stream_.sender_.drop_unsent();
  stream_.images_.lose(stream_.journal_);
  stream_.connection_.close();
  if (!stream_.journal_.may_be_whole()) return false;
  const std::lock_guard lock(stream_.commands_.mutex());
  stream_.session_.away = true;
  return true;
}

std::pair<uint64_t, uint64_t> Handover::differences() {
  const WithoutGil free;
  const std::lock_guard lock(stream_.receiver_.mutex());
  const Answers& answers = stream_.receiver_.answers();
  return {answers.differences(), answers.compared()};
}

void Handover::give_up(const std::string& why) {
  stream_.session_.connected = false;
  stream_.abandon(why);
  stream_.connection_.close();
  TORCH_CHECK(false, why);
}

void Handover::replay(bool restores) {
  if (stream_.commands_.meetings().are_known()) keep_recorded();
  if (const auto images = stream_.commands_.meetings().images()) choose_image(*images);
  if (!stream_.journal_.is_whole()) give_up("the worker is gone, and it was sent more than this process keeps");
  stream_.receiver_.set_answered(answered_);
  stream_.receiver_.begin_comparison();
  Journal::Replay replay;
  replay.restores = restores;
  replay.answered = answered_;
  replay.again = [this](uint64_t request) { return stream_.receiver_.answers().knows(request); };
  replay.send = [this](const std::vector<uint8_t>& frames) { send(frames); };
  replay.pause = [this] { settle(); };
  replay.met = [this](wire::Reader door) { tell_door(door); };
  replay.compiled = [this](uint64_t request) { await_definition(request); };
  replay.renew = [this](wire::Writer& out, wire::Reader member) { renew_member(out, member); };
  if (!stream_.journal_.replay(replay)) settle_recorded();
}

// All members go on from the same one.
void Handover::choose_image(CommonImages& images) {
  bool is_latest = false;
  try {
    is_latest = images.go_on(stream_.commands_.meetings().number());
  } catch (const std::exception& error) {
    give_up(std::string("the worker is gone, and the other members of the process group cannot be asked which image to go on from: ") + error.what());
  }
  if (stream_.images_.is_kept_here()) stream_.images_.count(stream_.journal_, is_latest);
}

// What was recorded may name dead workers of other members: it is sent from the journal too.
void Handover::keep_recorded() {
  const std::lock_guard lock(stream_.commands_.mutex());
  std::vector<uint8_t> recorded;
  stream_.commands_.take(recorded, stream_.journal_);
}

// Process groups.

std::shared_ptr<MeetingPlace> Handover::place_of(uint64_t group) {
  auto place = stream_.commands_.meetings().place_of(group);
  TORCH_CHECK(place != nullptr, "process group ", group, " is not known");
  return place;
}

void Handover::tell_door(wire::Reader door) {
  const uint64_t request = door.varint(), group = door.varint();
  std::optional<Door> opened;
  stream_.receiver_.receive(request, [&](Reply reply, wire::Reader& body) {
    if (reply == Reply::kDoor) opened = read_door(body);
  });
  stream_.receiver_.set_answered(answered_);
  if (!opened) give_up("the worker is gone, and the next one opens no door for the process group");
  place_of(group)->tell(stream_.commands_.meetings().number(), *opened);
}

// What the dead worker had refused is used by nobody.
void Handover::await_definition(uint64_t request) {
  bool is_refused = false;
  stream_.receiver_.receive(request, [&](Reply reply, wire::Reader&) { is_refused = reply == Reply::kFailure; });
  stream_.receiver_.set_answered(answered_);
  const auto was_compiled = [&] {
    const std::lock_guard recording(stream_.commands_.mutex());
    const auto& awaited = stream_.commands_.definitions().awaited();
    return std::any_of(awaited.begin(), awaited.end(), [&](const AwaitedDefinition& definition) { return definition.request == request; });
  };
  if (is_refused && was_compiled()) give_up("the worker is gone, and the next one cannot compile what the program brought to it");
}

void Handover::renew_member(wire::Writer& out, wire::Reader member) {
  const uint64_t group = member.varint(), number = member.varint();
  const auto pause = [this] {
    stream_.connection_.check_alive();
    check_signals();
  };
  put_member(out, group, number, place_of(group)->told_by(stream_.commands_.meetings().number(), number, pause));
}

void Handover::settle() {
  const uint64_t request = stream_.new_request();
  send(framed([&](wire::Writer& out) {
    out.command(Command::kSync);
    out.varint(request);
  }));
  stream_.receiver_.receive(request, [](Reply, wire::Reader&) {});
  stream_.receiver_.set_answered(answered_);
}

// With all that was recorded and not sent. What is asked does not end the segment: a library may carry it out, once the rest of it has come.
void Handover::settle_recorded() {
  const uint64_t request = stream_.new_request();
  std::vector<uint8_t> last;
  {
    const std::lock_guard lock(stream_.commands_.mutex());
    auto& out = stream_.commands_.command();
    const size_t begin = stream_.commands_.place();
    out.command(Command::kTellGang);
    out.varint(request);
    stream_.commands_.note_question(begin, request, AskedCommand::Kind::kAside);
    stream_.commands_.take(last, stream_.journal_);
  }
  send(last);
  stream_.receiver_.receive(request, [](Reply, wire::Reader&) {});
}

void Handover::send(const std::vector<uint8_t>& frames) {
  for (size_t sent = 0; sent < frames.size();) {
    if (const auto count = stream_.connection_.send(frames.data() + sent, frames.size() - sent)) {
      sent += *count;
      continue;
    }
    stream_.receiver_.pass_over(answered_);  // else both sides would wait for each other
    stream_.connection_.wait(POLLIN | POLLOUT);
  }
}

}  // namespace forebay
