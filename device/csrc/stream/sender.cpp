#include "stream/sender.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/python.h"
#include "base/waiting.h"
#include "replay/frames.h"

namespace forebay {
namespace {

using wire::Command;

constexpr int64_t kUploadPieceBytes = SharedMemory::kSlotBytes;

}  // namespace

void Sender::flush(Wait wait) {
  if (in_signal_handler() || in_callback()) return;  // the thread that is interrupted goes on sending
  const WithoutGil free;
  const std::lock_guard lock(mutex_);
  if (!session_.connected || !send_uploads(wait)) return;
  send_recorded(wait);
}

// Also of a connection that has broken: what was recorded is then in the journal.
bool Sender::send_recorded(Wait wait) {
  if (!session_.away) take_recorded();
  try {
    return send_outgoing(wait);
  } catch (const LinkBroken&) {
    drop_unsent();
    return true;
  }
}

void Sender::take_recorded() {
  images_.settle(journal_);
  const std::lock_guard recording(commands_.mutex());
  const bool between = commands_.is_between_segments();
  commands_.take(outgoing_, journal_);
  if (uploads_.empty() && !session_.broken && images_.is_due(journal_, lease_.worked(), between)) ask_for_image();
}

// The journal has a CUT in its place: who is sent the journal makes no image there.
void Sender::ask_for_image(bool together) {
  auto frames = commands_.cut_for_image(outgoing_, journal_);
  const uint64_t number = images_.ask(journal_, lease_.worked(), together);
  const auto keep = framed([&](wire::Writer& out) {
    out.command(Command::kKeep);
    out.varint(number);
    out.varint(journal_.image());
    out.u8(together);
  });
  outgoing_.insert(outgoing_.end(), keep.begin(), keep.end());
  journal_.ask_image(number, commands_.definitions().awaited(), std::move(frames), commands_.definitions().meetings());
}

bool Sender::ask_for_common_image() {
  const std::lock_guard lock(mutex_);
  if (!session_.connected || session_.away || session_.broken || !send_uploads(Wait::kYes) || !uploads_.empty() || session_.broken) return false;
  images_.settle(journal_);
  if (!images_.may_ask(journal_)) return false;
  {
    const std::lock_guard recording(commands_.mutex());
    commands_.take(outgoing_, journal_);
    ask_for_image(/*together=*/true);
  }
  send_recorded(Wait::kNo);
  return true;
}

bool Sender::can_ask_for_common_image() {
  const std::lock_guard lock(mutex_);
  if (!session_.connected || session_.away || session_.broken) return false;
  images_.settle(journal_);
  return images_.may_ask(journal_);
}

bool Sender::wants_common_image() {
  if (!can_ask_for_common_image()) return false;
  const std::lock_guard lock(mutex_);
  return images_.is_wanted(journal_, lease_.worked());
}

std::optional<bool> Sender::has_common_image() {
  const std::lock_guard lock(mutex_);
  images_.settle(journal_);
  if (images_.is_kept_here()) return true;
  return journal_.awaits_image() ? std::nullopt : std::optional(false);
}

bool Sender::count_common_image(bool all_kept) {
  const std::lock_guard lock(mutex_);
  if (session_.away || session_.broken) return false;
  if (images_.is_kept_here() || !all_kept) images_.count(journal_, all_kept);
  return true;
}

void Sender::flush_early() {
  if (in_signal_handler() || in_callback()) return;
  if (session_.connected && connection_.has_unread()) return commands_.set_due(CommandBuffer::Due::kNo);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && session_.connected && !session_.away && uploads_.empty()) send_recorded(Wait::kNo);
}

bool Sender::take_alone(const std::function<bool()>& record) {
  if (!session_.connected || !send_uploads(Wait::kYes) || session_.broken) return false;
  const std::lock_guard recording(commands_.mutex());
  if (!record()) return false;
  commands_.take(outgoing_, journal_);
  journal_.drop();
  return true;
}

void Sender::put(const std::vector<uint8_t>& frame) { outgoing_.insert(outgoing_.end(), frame.begin(), frame.end()); }

void Sender::send_rest() { send_outgoing(Wait::kYes); }

void Sender::begin() {
  outgoing_.clear();
  sent_ = 0;
}

void Sender::send_first(std::vector<uint8_t> bytes) {
  outgoing_ = std::move(bytes);
  send_outgoing(Wait::kYes);
}

// An interrupt (Ctrl-C) may leave a part unsent: it is kept, and goes first the next time. Whether all is sent.
bool Sender::send_outgoing(Wait wait) {
  while (sent_ < outgoing_.size()) {
    if (const auto count = connection_.send(outgoing_.data() + sent_, outgoing_.size() - sent_)) {
      sent_ += *count;
      continue;
    }
    unsent_.store(true, std::memory_order_relaxed);
    if (wait == Wait::kNo) return false;
    connection_.wait(POLLOUT);
  }
  outgoing_.clear();
  sent_ = 0;
  unsent_.store(!uploads_.empty(), std::memory_order_relaxed);
  return true;
}

void Sender::add(Upload upload) {
  {
    const std::lock_guard recording(commands_.mutex());
    commands_.take(uploads_.empty() ? outgoing_ : upload.before, journal_, /*cuts=*/true);
  }
  journal_.write(upload.storage, upload.offset, upload.next, upload.left);
  upload.bytes = upload.left;
  uploads_.push_back(std::move(upload));
  commands_.set_unsettled(true);
  commands_.set_uploading(true);
  unsent_ = true;
}

bool Sender::must_await_image(int64_t bytes) {
  if (in_callback()) return false;  // the worker waits for this thread
  const std::lock_guard lock(mutex_);
  images_.settle(journal_);
  return !session_.away && !session_.broken && images_.must_await(journal_, static_cast<uint64_t>(bytes));
}

void Sender::take_last(const std::vector<uint8_t>& frame) {
  Upload behind{};
  auto& target = uploads_.empty() ? outgoing_ : behind.before;
  commands_.take(target, journal_, /*cuts=*/true);
  target.insert(target.end(), frame.begin(), frame.end());
  if (!uploads_.empty()) uploads_.push_back(std::move(behind));
  unsent_ = true;
}

bool Sender::send_uploads(Wait wait) {
  try {
    return send_all_uploads(wait);
  } catch (const LinkBroken&) {
    drop_unsent();
    return true;
  }
}

void Sender::drop_unsent() {
  begin();
  for (auto& upload : uploads_) {
    if (upload.source) sent_sources_.push_back(std::move(upload.source));
  }
  uploads_.clear();
  commands_.set_uploading(false);
  unsent_ = false;
}

bool Sender::send_all_uploads(Wait wait) {
  while (!uploads_.empty()) {
    if (!send_outgoing(wait) || !advance(uploads_.front(), wait)) return false;
    if (uploads_.front().left > 0 || !uploads_.front().before.empty()) continue;
    if (!send_outgoing(wait)) return false;
    Upload& sent = uploads_.front();
    if (sent.content != 0) contents_.finish(sent.content, sent.hash.digest());
    if (sent.source) sent_sources_.push_back(std::move(sent.source));
    uploads_.pop_front();
  }
  commands_.set_uploading(false);
  return true;
}

// The frame that has begun must be whole; the rest is not sent.
void Sender::cut_last_upload() {
  if (uploads_.empty()) return;
  Upload& last = uploads_.back();
  last.before.insert(last.before.end(), last.next, last.next + last.in_frame);
  journal_.shorten_last_write(last.bytes - last.left + last.in_frame);
  last.in_frame = last.left = 0;
  last.content = 0;
}

bool Sender::advance(Upload& upload, Wait wait) {
  if (!upload.before.empty()) {
    outgoing_.swap(upload.before);
    return true;
  }
  if (upload.in_frame > 0) return send_payload(upload, wait);
  if (upload.left == 0) return true;
  if (shared_) return offer(upload, wait);
  upload.in_frame = std::min<int64_t>(upload.left, wire::kChunkBytesMax);
  put_write(upload, Command::kWrite, static_cast<uint64_t>(upload.in_frame), 0);
  return true;
}

// The frame of a WRITE up to its payload, or of a WRITE_SHARED.
void Sender::put_write(const Upload& upload, Command command, uint64_t bytes, uint64_t place) {
  const bool shared = command == Command::kWriteShared;
  const auto frame = framed(
      [&](wire::Writer& out) {
        out.command(command);
        out.varint(upload.storage);
        out.varint(static_cast<uint64_t>(upload.offset));
        out.varint(bytes);
        if (shared) out.varint(place);
      },
      shared ? 0 : bytes);
  outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
}

bool Sender::send_payload(Upload& upload, Wait wait) {
  const auto count = connection_.send(upload.next, static_cast<size_t>(std::min(upload.in_frame, kUploadPieceBytes)));
  if (!count) {
    if (wait == Wait::kNo) return false;
    connection_.wait(POLLOUT);
    return true;
  }
  if (upload.content != 0) upload.hash.add(upload.next, *count);  // while a cache holds them
  const auto bytes = static_cast<int64_t>(*count);
  upload.next += bytes;
  upload.offset += bytes;
  upload.left -= bytes;
  upload.in_frame -= bytes;
  return true;
}

// Puts the next piece into the ring. False if it is full, and the thread does not wait.
bool Sender::offer(Upload& upload, Wait wait) {
  uint8_t* slot = shared_.offer();
  if (slot == nullptr) {
    if (wait == Wait::kNo) return false;
    if (!shared_.wait(kPollMs)) {
      check_signals();
      connection_.check_alive();
    }
    return true;
  }
  const int64_t bytes = std::min<int64_t>(upload.left, kUploadPieceBytes);
  if (upload.content != 0) {
    upload.hash.copy(slot, upload.next, static_cast<size_t>(bytes));
  } else {
    std::memcpy(slot, upload.next, static_cast<size_t>(bytes));
  }
  shared_.set_in_use(true);
  put_write(upload, Command::kWriteShared, static_cast<uint64_t>(bytes), shared_.offset_of(slot));
  upload.next += bytes;
  upload.offset += bytes;
  upload.left -= bytes;
  counters_.bytes_sent.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return true;
}

std::vector<c10::Storage> Sender::take_sent_sources() { return std::exchange(sent_sources_, {}); }

void Sender::clear() {
  uploads_.clear();
  sent_sources_.clear();
  commands_.set_uploading(false);
}

void Sender::forked() {
  new (&mutex_) std::mutex;
  new (&uploads_) std::deque<Upload>;
  new (&outgoing_) std::vector<uint8_t>;
  new (&sent_sources_) std::vector<c10::Storage>;
  sent_ = 0;
  unsent_ = false;
  commands_.set_uploading(false);
}

}  // namespace forebay
