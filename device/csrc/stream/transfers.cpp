#include "stream/transfers.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "base/python.h"
#include "forebay/bulk.h"

namespace forebay {
namespace {

using wire::Command;
using wire::Reply;

constexpr int64_t kBulkBytes = 64 << 10;  // smaller data travels among the commands
constexpr int64_t kSlotBytes = SharedMemory::kSlotBytes;

size_t slots_of(int64_t bytes) { return static_cast<size_t>((bytes + kSlotBytes - 1) / kSlotBytes); }

}  // namespace

// Uploads

void Transfers::write(StorageHandle& storage, int64_t offset, const void* data, int64_t bytes, c10::Storage source) {
  const ActivityClock profiled(Activity::kUpload, stream_.device_, bytes);
  const WithoutGil free;
  const auto* first = static_cast<const uint8_t*>(data);
  stream_.lease_.need();
  stream_.check_stopped();
  if (stream_.downloads_.in_progress()) finish_downloads_to(first, bytes);
  auto& contents = stream_.contents_;
  if (bytes < kBulkBytes) {
    contents.forget(storage);
    return write_small(storage, offset, first, bytes);
  }
  refuse_in_signal_handler();
  if (stream_.sender_.must_await_image(bytes)) stream_.synchronize();
  Upload upload{storage.id, offset, first, bytes, std::move(source)};
  if (bytes < kContentBytesMin) {
    contents.forget(storage);
  } else {
    const uint64_t fingerprint = content_fingerprint(first, static_cast<size_t>(bytes));
    if (copy_known(storage, offset, first, bytes, fingerprint)) return stream_.send_if_due();
    upload.content = contents.begin(storage, offset, fingerprint, stream_.failures_.heard());
  }
  send_upload(storage.generation, std::move(upload));
}

void Transfers::write_small(const StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes) {
  if (bytes == 0) return;
  {
    const auto lock = stream_.lock_for(storage.generation);
    auto& commands = stream_.commands_;
    auto& out = commands.cut();
    out.command(Command::kWrite);
    out.varint(storage.id);
    out.varint(static_cast<uint64_t>(offset));
    out.varint(static_cast<uint64_t>(bytes));
    out.raw(data, static_cast<size_t>(bytes));
    stream_.failures_.note_transfer();
    commands.set_unsettled(true);
    commands.appended();
  }
  stream_.send_if_due();
}

bool Transfers::copy_known(StorageHandle& storage, int64_t offset, const uint8_t* data, int64_t bytes, uint64_t fingerprint) {
  if (!stream_.contents_.may_know(fingerprint)) return false;
  ContentHash hash;
  hash.add(data, static_cast<size_t>(bytes));
  auto& failures = stream_.failures_;
  const uint64_t heard = failures.heard();
  const auto copy = [&](const Contents::Place& place) {
    auto& commands = stream_.commands_;
    const std::lock_guard lock(commands.mutex());
    // No thread may be waited for here, since others wait for this one.
    if (stream_.session_.away || storage.generation != stream_.generation() || heard != failures.heard()) return false;
    failures.note_transfer();
    auto& out = commands.cut();
    out.command(Command::kCopy);
    out.varint(storage.id);
    out.varint(static_cast<uint64_t>(offset));
    out.varint(place.storage);
    out.varint(static_cast<uint64_t>(place.offset));
    out.varint(static_cast<uint64_t>(bytes));
    commands.set_unsettled(true);
    commands.appended();
    return true;
  };
  const bool known = stream_.contents_.reuse(storage, offset, fingerprint, hash.digest(), heard, copy);
  if (known) stream_.counters_.bytes_known.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return known;
}

void Transfers::send_upload(uint64_t generation, Upload upload) {
  const bool waits = !upload.source;
  std::vector<c10::Storage> sent;  // let go after the lock
  const auto send_lock = stream_.lock_to_send();
  stream_.check_generation(generation);  // no session begins while this lock is held
  TORCH_CHECK(stream_.connected(), "the virtual device is not connected to a worker");
  sent = stream_.sender_.take_sent_sources();
  {
    const auto lock = stream_.lock_to_append();
    stream_.failures_.note_transfer();
  }
  stream_.sender_.add(std::move(upload));
  if (!waits) return stream_.wakeup_.wake();
  try {
    stream_.sender_.send_uploads(Wait::kYes);
  } catch (...) {
    stream_.sender_.cut_last_upload();
    throw;
  }
}

// What comes down into memory that goes up again goes up as it came.
void Transfers::finish_downloads_to(const uint8_t* data, int64_t bytes) {
  refuse_in_signal_handler();
  bool meet = false;
  {
    const auto receive_lock = stream_.lock_to_receive();
    meet = stream_.downloads_.write_to(data, bytes);
  }
  if (meet) stream_.synchronize();
}

// Downloads

void Transfers::read(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes) {
  const ActivityClock profiled(Activity::kRead, stream_.device_, bytes);
  Question question(stream_);
  advise_large_pages(data, bytes);
  auto* target = static_cast<uint8_t*>(data);
  if (stream_.shared_ && bytes >= kBulkBytes) {
    read_through_memory(question, storage, offset, target, bytes);
  } else {
    read_through_socket(question, storage, offset, target, bytes);
  }
  if (bytes > 0 && !stream_.downloads_.have_failed()) question.settled();
}

// Records a READ, or with a slot a READ_SHARED into it; returns the request's number.
uint64_t Transfers::append_read(const StorageHandle& storage, int64_t offset, int64_t bytes, const uint8_t* slot, Question* question) {
  const auto lock = stream_.lock_for(storage.generation);
  const uint64_t request = stream_.new_request();
  auto& commands = stream_.commands_;
  auto& out = commands.cut();
  const size_t begin = commands.place();
  out.command(slot == nullptr ? Command::kRead : Command::kReadShared);
  out.varint(request);
  out.varint(storage.id);
  out.varint(static_cast<uint64_t>(offset));
  out.varint(static_cast<uint64_t>(bytes));
  if (slot != nullptr) {
    out.varint(stream_.shared_.offset_of(slot));
    stream_.shared_.set_in_use(true);
  }
  commands.note_question(begin, request);
  if (question == nullptr) {
    stream_.failures_.note_transfer();
    commands.appended();
  } else {
    commands.appended_to_send();
    question->settles();
  }
  return request;
}

// The worker fills slots ahead while this thread empties them.
void Transfers::read_through_memory(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes) {
  std::array<uint64_t, SharedMemory::kWindowSlots> requests{};
  const size_t pieces = slots_of(bytes);
  const auto size_of = [&](size_t piece) { return std::min(kSlotBytes, bytes - static_cast<int64_t>(piece) * kSlotBytes); };
  auto& shared = stream_.shared_;
  size_t asked = 0;
  for (size_t piece = 0; piece < pieces; ++piece) {
    for (; asked < pieces && asked < piece + requests.size(); ++asked) {
      const int64_t place = offset + static_cast<int64_t>(asked) * kSlotBytes;
      requests[asked % requests.size()] = append_read(storage, place, size_of(asked), shared.window_slot(asked), &question);
    }
    stream_.sender_.flush(Wait::kYes);
    question.receive([&] {
      stream_.receiver_.receive(requests[piece % requests.size()], [this](Reply reply, wire::Reader& body) {
        stream_.check_answer(reply, body);
        note_busy(stream_.device_, body.varint());
      });
    });
    const auto size = static_cast<size_t>(size_of(piece));
    copy_out(target + piece * SharedMemory::kSlotBytes, shared.window_slot(piece), size, bytes >= kPastCachesBytes);
    stream_.counters_.bytes_received.fetch_add(size, std::memory_order_relaxed);
  }
}

void Transfers::read_through_socket(Question& question, const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes) {
  std::vector<std::pair<uint64_t, int64_t>> requests;
  for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(wire::kChunkBytesMax)) {
    const int64_t size = std::min<int64_t>(bytes - done, wire::kChunkBytesMax);
    requests.emplace_back(append_read(storage, offset + done, size, nullptr, &question), size);
  }
  stream_.sender_.flush(Wait::kYes);
  for (const auto& [request, size] : requests) {
    question.receive([&] { receive_data(request, target, static_cast<size_t>(size)); });
    target += size;
  }
}

void Transfers::receive_data(uint64_t request, uint8_t* target, size_t bytes) {
  TORCH_CHECK(stream_.connected(), "the virtual device is not connected to a worker");
  const auto take = [&](Reply reply, wire::Reader& body) {
    stream_.check_answer(reply, body);
    note_busy(stream_.device_, body.varint());
    const size_t size = body.count(wire::kChunkBytesMax, "the length of data");
    TORCH_CHECK(size == bytes, "the worker sent ", size, " bytes where ", bytes, " were asked for");
    std::memcpy(target, body.raw(size), size);
  };
  for (;;) {
    if (bytes >= static_cast<size_t>(kBulkBytes)) {
      if (const auto busy = stream_.receiver_.receive_data(request, target, bytes)) return note_busy(stream_.device_, *busy);
    }
    if (stream_.receiver_.receive_one(request, take)) return;
  }
}

void Transfers::read_later(const StorageHandle& storage, int64_t offset, void* data, int64_t bytes, c10::Storage target) {
  if (!read_into_slots(storage, offset, static_cast<uint8_t*>(data), bytes, target)) read(storage, offset, data, bytes);
}

// False if there is no shared memory, or not enough of it.
bool Transfers::read_into_slots(const StorageHandle& storage, int64_t offset, uint8_t* target, int64_t bytes, const c10::Storage& kept) {
  const WithoutGil free;
  stream_.lease_.need();
  refuse_in_signal_handler();
  const auto receive_lock = stream_.lock_to_receive();
  auto& downloads = stream_.downloads_;
  const auto first = stream_.shared_ ? downloads.reserve(slots_of(bytes)) : std::nullopt;
  if (!first) return false;
  size_t next = *first;
  for (int64_t done = 0; done < bytes; done += kSlotBytes) {
    const int64_t size = std::min(kSlotBytes, bytes - done);
    const uint8_t* slot = stream_.shared_.later_slot(next++);
    downloads.add({append_read(storage, offset + done, size, slot), slot, target + done, size, kept});
  }
  stream_.commands_.set_unsettled(true);
  stream_.sender_.flush(Wait::kNo);
  return true;
}

}  // namespace forebay
