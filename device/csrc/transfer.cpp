// The command stream's bulk data: through memory shared with a worker on this host, through the socket with another, or not at all,
// where the worker holds the same bytes.
#include "transfer.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "forebay/bulk.h"
#include "profile.h"
#include "python.h"
#include "stream.h"

namespace forebay {
namespace {

using wire::Command;
using wire::Reply;

constexpr int64_t kBulkBytes = 64 << 10;  // smaller data travels among the commands
constexpr int64_t kSlotBytes = SharedMemory::kSlotBytes;
constexpr int64_t kPastCachesBytes = 32 << 20;  // of a download's target, which the program may read at once
constexpr size_t kDataHeadBytesMax = 1 + 3 * 10;

}  // namespace

// The area, when a session begins.

void CommandStream::share_memory() {
  const uint64_t request = new_request();
  wire::Writer command;
  command.raw("\0\0\0\0", wire::kFrameHeaderBytes);
  command.command(Command::kShare);
  command.varint(request);
  command.varint(SharedMemory::kBytes);
  wire::put_frame_header(command.bytes().data(), command.size() - wire::kFrameHeaderBytes);
  outgoing_ = command.bytes();
  drain_outgoing(Wait::kYes);
  receive_one(request, [this](Reply reply, wire::Reader& body) {
    const uint64_t bytes = reply == Reply::kShared ? body.varint() : 0;
    const int descriptor = std::exchange(descriptor_, -1);
    if (bytes > 0 && descriptor >= 0) shared_.map(descriptor, bytes);
  });
}

void CommandStream::forget_transfers() {
  uploads_.clear();
  downloads_.clear();
  sent_sources_.clear();
  late_failure_.reset();
  uploading_ = false;
  downloading_ = false;
  contents_.clear();
  shared_.unmap();
}

// Uploads

void CommandStream::write(StorageHandle& storage, int64_t offset, const void* data, int64_t bytes, c10::Storage source) {
  const ActivityClock profiled(Activity::kUpload, device_, bytes);
  const WithoutGil free;
  const auto* first = static_cast<const uint8_t*>(data);
  need_lease();
  check_stopped();
  if (downloading_.load(std::memory_order_relaxed)) finish_downloads_to(first, bytes);
  if (bytes < kBulkBytes) {
    contents_.forget(storage);
    return write_small(storage, offset, first, bytes);
  }
  refuse_in_signal_handler();
  Upload upload{storage.id, offset, first, bytes, std::move(source)};
  if (bytes < kContentBytesMin) {
    contents_.forget(storage);
  } else {
    const uint64_t fingerprint = content_fingerprint(first, static_cast<size_t>(bytes));
    if (copy_known(storage, offset, first, bytes, fingerprint)) return send_if_due();
    upload.content = contents_.begin(storage, offset, fingerprint, heard());
  }
  send_upload(storage.generation, std::move(upload));
}

void CommandStream::write_small(const StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes) {
  if (bytes == 0) return;
  {
    const auto lock = lock_for(storage.generation);
    cut();
    pending_.command(Command::kWrite);
    pending_.varint(storage.id);
    pending_.varint(static_cast<uint64_t>(offset));
    pending_.varint(static_cast<uint64_t>(bytes));
    pending_.raw(data, static_cast<size_t>(bytes));
    note_transfer();
    unsynchronised_.store(true, std::memory_order_relaxed);
    appended();
  }
  send_if_due();
}

bool CommandStream::copy_known(StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes, uint64_t fingerprint) {
  if (!contents_.may_know(fingerprint)) return false;
  ContentHash hash;
  hash.add(data, static_cast<size_t>(bytes));
  const uint64_t now_heard = heard();
  const bool known = contents_.reuse(storage, offset, fingerprint, hash.digest(), now_heard, [&](const Contents::Place& place) {
    const std::lock_guard lock(mutex_);
    if (away_ || storage.generation != generation() || now_heard != heard()) return false;  // nobody may be waited for here, where others wait
    note_transfer();
    cut();
    pending_.command(Command::kCopy);
    pending_.varint(storage.id);
    pending_.varint(static_cast<uint64_t>(offset));
    pending_.varint(place.storage);
    pending_.varint(static_cast<uint64_t>(place.offset));
    pending_.varint(static_cast<uint64_t>(bytes));
    unsynchronised_.store(true, std::memory_order_relaxed);
    appended();
    return true;
  });
  if (known) bytes_known_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return known;
}

void CommandStream::send_upload(uint64_t generation, Upload upload) {
  const bool waits = !upload.source;
  std::vector<c10::Storage> sent;  // let go after the lock
  const auto send_lock = lock_to_send();
  check_generation(generation);  // no session begins while this lock is held
  TORCH_CHECK(connected_, "the virtual device is not connected to a worker");
  sent.swap(sent_sources_);
  {
    const auto lock = lock_to_append();
    note_transfer();
  }
  take_pending(uploads_.empty() ? outgoing_ : upload.before, /*cuts=*/true);
  uploads_.push_back(std::move(upload));
  unsynchronised_.store(true, std::memory_order_relaxed);
  uploading_ = true;
  unsent_ = true;
  if (!waits) return wake_ticker();
  try {
    drain_uploads(Wait::kYes);
  } catch (...) {  // the frame that has begun must be whole; the rest is not sent
    if (!uploads_.empty()) {
      Upload& cut = uploads_.back();
      cut.before.insert(cut.before.end(), cut.next, cut.next + cut.in_frame);
      cut.in_frame = cut.left = 0;
      cut.content = 0;
    }
    throw;
  }
}

// Sends uploads, and what was recorded before them, in order. Whether all are sent.
bool CommandStream::drain_uploads(Wait wait) {
  while (!uploads_.empty()) {
    if (!drain_outgoing(wait) || !advance(uploads_.front(), wait)) return false;
    if (uploads_.front().left > 0 || !uploads_.front().before.empty()) continue;
    if (!drain_outgoing(wait)) return false;
    Upload& sent = uploads_.front();
    if (sent.content != 0) contents_.finish(sent.content, sent.hash.digest());
    if (sent.source) sent_sources_.push_back(std::move(sent.source));
    uploads_.pop_front();
  }
  uploading_ = false;
  return true;
}

bool CommandStream::advance(Upload& upload, Wait wait) {
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
void CommandStream::put_write(const Upload& upload, Command command, uint64_t bytes, uint64_t place) {
  const bool shared = command == Command::kWriteShared;
  wire::Writer out;
  out.raw("\0\0\0\0", wire::kFrameHeaderBytes);
  out.command(command);
  out.varint(upload.storage);
  out.varint(static_cast<uint64_t>(upload.offset));
  out.varint(bytes);
  if (shared) out.varint(place);
  wire::put_frame_header(out.bytes().data(), out.size() - wire::kFrameHeaderBytes + (shared ? 0 : bytes));
  outgoing_.insert(outgoing_.end(), out.bytes().begin(), out.bytes().end());
}

bool CommandStream::send_payload(Upload& upload, Wait wait) {
  const auto size = static_cast<size_t>(std::min(upload.in_frame, kSlotBytes));
  const ssize_t count = ::send(socket_, upload.next, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) {
    if (upload.content != 0) upload.hash.add(upload.next, static_cast<size_t>(count));  // while a cache holds them
    upload.next += count;
    upload.offset += count;
    upload.left -= count;
    upload.in_frame -= count;
    bytes_sent_.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
  } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
    if (wait == Wait::kNo) return false;
    wait_ready(POLLOUT);
  } else if (errno != EINTR) {
    fail_connection(std::strerror(errno));
  }
  return true;
}

// Puts the next piece into the ring. False where it is full, and nobody waits.
bool CommandStream::offer(Upload& upload, Wait wait) {
  uint8_t* slot = shared_.offer();
  if (slot == nullptr) {
    if (wait == Wait::kNo) return false;
    if (!shared_.wait(kPollMs)) {
      check_signals();
      check_alive();
    }
    return true;
  }
  const int64_t bytes = std::min<int64_t>(upload.left, kSlotBytes);
  if (upload.content != 0) {
    upload.hash.copy(slot, upload.next, static_cast<size_t>(bytes));
  } else {
    std::memcpy(slot, upload.next, static_cast<size_t>(bytes));
  }
  shared_in_use_.store(true, std::memory_order_relaxed);
  put_write(upload, Command::kWriteShared, static_cast<uint64_t>(bytes), shared_.offset_of(slot));
  upload.next += bytes;
  upload.offset += bytes;
  upload.left -= bytes;
  bytes_sent_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return true;
}

void CommandStream::check_alive() {
  pollfd entry{socket_, POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) fail_connection("the worker ended");
}

// Downloads

void CommandStream::read(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes) {
  const ActivityClock profiled(Activity::kRead, device_, bytes);
  Question question(*this);
  advise_large_pages(data, bytes);
  auto* target = static_cast<uint8_t*>(data);
  if (shared_ && bytes >= kBulkBytes) {
    read_through_memory(question, storage, offset, target, bytes);
  } else {
    read_through_socket(question, storage, offset, target, bytes);
  }
  if (bytes > 0 && !late_failure_) question.settled();
}

// Records a READ, or with a slot a READ_SHARED into it; returns the request's number.
uint64_t CommandStream::append_read(const StorageHandle& storage, int64_t offset, int64_t bytes, const uint8_t* slot, Question* question) {
  const auto lock = lock_for(storage.generation);
  const uint64_t request = new_request();
  cut();
  pending_.command(slot == nullptr ? Command::kRead : Command::kReadShared);
  pending_.varint(request);
  pending_.varint(storage.id);
  pending_.varint(static_cast<uint64_t>(offset));
  pending_.varint(static_cast<uint64_t>(bytes));
  if (slot != nullptr) {
    pending_.varint(shared_.offset_of(slot));
    shared_in_use_.store(true, std::memory_order_relaxed);
  }
  if (question == nullptr) {
    note_transfer();
    appended();
  } else {
    appended_to_send();
    question->settles();
  }
  return request;
}

// The worker fills slots ahead while this thread empties them.
void CommandStream::read_through_memory(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes) {
  std::array<uint64_t, SharedMemory::kWindowSlots> requests{};
  const auto pieces = static_cast<size_t>((bytes + kSlotBytes - 1) / kSlotBytes);
  const auto size_of = [&](size_t piece) { return std::min(kSlotBytes, bytes - static_cast<int64_t>(piece) * kSlotBytes); };
  size_t asked = 0;
  for (size_t piece = 0; piece < pieces; ++piece) {
    for (; asked < pieces && asked < piece + requests.size(); ++asked) {
      const int64_t place = offset + static_cast<int64_t>(asked) * kSlotBytes;
      requests[asked % requests.size()] = append_read(storage, place, size_of(asked), shared_.window_slot(asked), &question);
    }
    flush(Wait::kYes);
    receive(requests[piece % requests.size()], [this](Reply reply, wire::Reader& body) {
      check_failure(reply, body);
      note_busy(device_, body.varint());
    });
    const auto size = static_cast<size_t>(size_of(piece));
    copy_out(target + piece * SharedMemory::kSlotBytes, shared_.window_slot(piece), size, bytes >= kPastCachesBytes);
    bytes_received_.fetch_add(size, std::memory_order_relaxed);
  }
}

void CommandStream::read_through_socket(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes) {
  std::vector<std::pair<uint64_t, int64_t>> requests;
  for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(wire::kChunkBytesMax)) {
    const int64_t size = std::min<int64_t>(bytes - done, wire::kChunkBytesMax);
    requests.emplace_back(append_read(storage, offset + done, size, nullptr, &question), size);
  }
  flush(Wait::kYes);
  for (const auto& [request, size] : requests) {
    receive_data(request, target, static_cast<size_t>(size));
    target += size;
  }
}

void CommandStream::receive_data(uint64_t request, uint8_t* target, size_t bytes) {
  TORCH_CHECK(connected_, "the virtual device is not connected to a worker");
  const auto take = [&](Reply reply, wire::Reader& body) {
    check_failure(reply, body);
    note_busy(device_, body.varint());
    const size_t size = body.count(wire::kChunkBytesMax, "the length of data");
    TORCH_CHECK(size == bytes, "the worker sent ", size, " bytes where ", bytes, " were asked for");
    std::memcpy(target, body.raw(size), size);
  };
  for (;;) {
    if (bytes >= static_cast<size_t>(kBulkBytes) && receive_payload(request, target, bytes)) return;
    if (receive_one(request, take)) return;
  }
}

// Receives the answer's payload where it belongs. False where the next frame is not that answer; it is left for receive_one.
bool CommandStream::receive_payload(uint64_t request, uint8_t* target, size_t bytes) {
  fill(wire::kFrameHeaderBytes);
  const size_t frame = wire::kFrameHeaderBytes + wire::get_frame_header(incoming_.data());
  if (frame < bytes) return false;
  fill(std::max(filled_, wire::kFrameHeaderBytes + kDataHeadBytesMax));
  wire::Reader body(incoming_.data() + wire::kFrameHeaderBytes, filled_ - wire::kFrameHeaderBytes);
  if (body.u8() != static_cast<uint8_t>(Reply::kData) || body.varint() != request) return false;
  const uint64_t busy = body.varint();
  if (body.varint() != bytes) return false;
  if (frame - bytes != filled_ - body.left()) return false;
  size_t done = body.left();
  std::memcpy(target, body.position(), done);
  try {
    while (done < bytes) done += receive_some(target + done, bytes - done);
  } catch (...) {  // an interrupt: the rest of the frame is received, and passed over, by whoever waits next
    incoming_.resize(std::max(incoming_.size(), frame));
    filled_ = frame - bytes + done;
    throw;
  }
  filled_ = 0;
  note_busy(device_, busy);
  return true;
}

// Downloads that nobody waits for

void CommandStream::read_later(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes, c10::Storage target) {
  {
    const WithoutGil free;
    need_lease();
    refuse_in_signal_handler();
    const auto receive_lock = lock_to_receive();
    if (downloads_.empty()) later_slots_ = 0;
    const auto pieces = static_cast<size_t>((bytes + kSlotBytes - 1) / kSlotBytes);
    if (shared_ && later_slots_ + pieces <= SharedMemory::kLaterSlots) {
      for (int64_t done = 0; done < bytes; done += kSlotBytes) {
        const int64_t size = std::min(kSlotBytes, bytes - done);
        const uint8_t* slot = shared_.later_slot(later_slots_++);
        downloads_.push_back({append_read(storage, offset + done, size, slot), slot, static_cast<uint8_t*>(data) + done, size, target});
      }
      unsynchronised_.store(true, std::memory_order_relaxed);
      downloading_ = true;
      flush(Wait::kNo);
      return;
    }
  }
  read(storage, offset, data, bytes);
}

// An answer that nobody waits for: a download's, or one whose question was interrupted.
void CommandStream::take_download(uint64_t request, Reply reply, wire::Reader& body) {
  while (!downloads_.empty() && downloads_.front().request < request) downloads_.pop_front();
  if (downloads_.empty() || downloads_.front().request != request) return;
  const Download& download = downloads_.front();
  if (reply == Reply::kDone) {
    copy_out(download.place, download.slot, static_cast<size_t>(download.bytes), static_cast<int64_t>(download.target.nbytes()) >= kPastCachesBytes);
    bytes_received_.fetch_add(static_cast<uint64_t>(download.bytes), std::memory_order_relaxed);
  } else if (!late_failure_ && reply == Reply::kFailure) {
    late_failure_ = told_failure(body, heard_generation_);
  }
  downloads_.pop_front();
  if (downloads_.empty()) downloading_ = false;
}

// What comes down into memory that goes up again goes up as it came.
void CommandStream::finish_downloads_to(const uint8_t* data, int64_t bytes) {
  refuse_in_signal_handler();
  bool meet = false;
  {
    const auto receive_lock = lock_to_receive();
    for (const auto& download : downloads_) meet = meet || (download.place < data + bytes && data < download.place + download.bytes);
  }
  if (meet) synchronize();
}

// Unless the program has heard of it already.
void CommandStream::tell_late_failure() {
  const auto failure = std::exchange(late_failure_, std::nullopt);
  if (failure && (failure->number == 0 || failure->number > heard())) throw_failure(*failure);
}

}  // namespace forebay
