#include "session/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <forebay/bulk.h>

namespace forebay::worker {

namespace {

constexpr int64_t kPastCachesBytes = 4 << 20;  // storages that the caches of one processor do not hold

// What a null device reads.
const std::vector<uint8_t>& zeros() {
  static const std::vector<uint8_t> bytes(wire::kChunkBytesMax);
  return bytes;
}

}  // namespace

void Transfers::resize(wire::Reader& in) {
  const uint64_t id = in.varint();
  const auto bytes = static_cast<int64_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
  Entry& entry = storages_.at(id);
  gang_.settle();
  if (effects_.stopped() && bytes <= entry.bytes()) return;  // what it holds stays
  try {
    before_placed_write(entry);
    gang_.make_whole({id});
    if (gang_.is_on()) gang_.gang().homes().gather({id}, 0);
    storages_.resize(id, bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    entry.fall_short(effects_.stopped() ? effects_.stopped() : effects_.announced(effects_.stop_now("RESIZE", effects_.next_call())));
  }
}

void Transfers::write(wire::Reader& in) {
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kChunkBytesMax, "the size of a chunk"));
  const uint8_t* data = in.raw(bytes);
  const auto upload = begin_upload(id, offset, bytes);
  if (!upload) return;
  std::memcpy(upload->target(), data, bytes);
  finish_upload(*upload);
}

// One device says so itself when its memory is touched.
void Transfers::before_placed_write(Entry& entry) {
  if (gang_.is_on() && entry.watch() != nullptr) entry.watch()->before_placed_write();
}

std::optional<Upload> Transfers::begin_upload(uint64_t storage, uint64_t offset, size_t bytes) {
  Entry& entry = storages_.at(storage);
  gang_.settle();
  if (effects_.stopped()) return std::nullopt;
  if (const Cause& before = effects_.lost() ? effects_.lost() : entry.cause()) {
    effects_.announced(effects_.stop_after(*before));
    return std::nullopt;
  }
  try {
    entry.check_range(offset, bytes, "a WRITE");
    if (!device_.computes() || bytes == 0) return std::nullopt;
    const bool all = offset == 0 && static_cast<int64_t>(bytes) == entry.bytes();
    const auto at = static_cast<int64_t>(offset), size = static_cast<int64_t>(bytes);
    before_placed_write(entry);
    gang_.make_whole({storage});
    if (gang_.is_on()) gang_.gang().homes().give_home(storage);
    if (at == 0) gang_.note_upload(storage);
    if (entry.home() != 0) return Upload{storage, at, size, device_.allocate_parked(size), 0};
    const auto& memory = all ? entry.touch_unwritten(device_) : entry.touch(device_);
    if (device_.is_host()) return Upload{storage, at, size, memory, at};
    return Upload{storage, at, size, device_.allocate_staging(size), 0};
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    effects_.announced(effects_.stop_now("WRITE", effects_.next_call()));
    return std::nullopt;
  }
}

void Transfers::finish_upload(const Upload& upload) {
  Entry& entry = storages_.at(upload.storage);
  try {
    if (entry.home() != 0) return gang_.gang().homes().write(upload.storage, entry, upload.offset, upload.target(), upload.bytes);
    const auto& memory = entry.touch(device_);
    if (memory.is_alias_of(upload.memory)) return;
    device_.copy(memory, upload.offset, upload.memory, upload.at, upload.bytes);
    if (upload.offset == 0 && !gang_.is_on()) storages_.keep_upload(upload.storage, upload.target(), upload.bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    effects_.announced(effects_.stop_now("WRITE", effects_.next_call()));
  }
}

std::optional<const void*> Transfers::readable(uint64_t request, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held) {
  Entry& entry = storages_.at(id);
  gang_.settle();
  const Cause& stopped = effects_.stopped();
  if (const Cause& before = stopped ? stopped : effects_.lost() ? effects_.lost() : entry.cause()) {
    effects_.report(request, stopped ? *stopped : Effects::derived(*before));
    return std::nullopt;
  }
  try {
    return fetched(entry, id, offset, bytes, held);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    effects_.report(request, *effects_.stop_now("READ", effects_.next_call()));
    return std::nullopt;
  }
}

std::optional<const void*> Transfers::fetched(Entry& entry, uint64_t id, uint64_t offset, size_t bytes, c10::Storage& held) {
  entry.check_range(offset, bytes, "a READ");
  if (!device_.computes() || bytes == 0) return zeros().data();
  gang_.make_whole({id}, /*only_read=*/true);
  const auto size = static_cast<int64_t>(bytes), begin = static_cast<int64_t>(offset);
  if (entry.home() != 0) {
    held = device_.allocate_parked(size);
    gang_.gang().homes().read(id, entry, begin, size, static_cast<uint8_t*>(held.mutable_data()));
    return held.data();
  }
  const auto& memory = entry.read(device_);
  if (device_.is_host()) {
    held = memory;
    return static_cast<const uint8_t*>(memory.data()) + offset;
  }
  held = device_.allocate_staging(size);
  device_.copy(held, 0, memory, begin, size);
  const GangWork::Wait wait(gang_.work());
  device_.synchronize();
  return held.data();
}

void Transfers::read(wire::Reader& in) {
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

// Bulk data beside the socket.

void Transfers::share(wire::Reader& in) {
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

SharedMemory& Transfers::shared() {
  if (!shared_) throw wire::WireError("there is no shared area; SHARE comes first");
  return *shared_;
}

void Transfers::write_shared(wire::Reader& in) {
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

void Transfers::read_shared(wire::Reader& in) {
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
  replies_.done(request);
}

void Transfers::copy(wire::Reader& in) {
  const uint64_t id = in.varint();
  const uint64_t offset = in.varint();
  const uint64_t source_id = in.varint();
  const uint64_t source_offset = in.varint();
  const auto bytes = static_cast<size_t>(in.bounded(wire::kStorageBytesMax, "the size of a storage"));
  if (id == source_id) throw wire::WireError("a COPY of storage " + std::to_string(id) + " to itself");
  Entry& entry = storages_.at(id);
  Entry& source = storages_.at(source_id);
  gang_.settle();
  if (effects_.stopped()) return;
  if (const Cause& before = effects_.lost() ? effects_.lost() : source.cause() ? source.cause() : entry.cause()) {
    effects_.announced(effects_.stop_after(*before));
    return;
  }
  try {
    copy_range(id, offset, source_id, source_offset, bytes);
  } catch (const wire::WireError&) {
    throw;
  } catch (...) {
    effects_.announced(effects_.stop_now("COPY", effects_.next_call()));
  }
}

void Transfers::copy_range(uint64_t id, uint64_t offset, uint64_t source_id, uint64_t source_offset, size_t bytes) {
  Entry& entry = storages_.at(id);
  Entry& source = storages_.at(source_id);
  source.check_range(source_offset, bytes, "a COPY");
  entry.check_range(offset, bytes, "a COPY");
  if (!device_.computes() || bytes == 0) return;
  const auto size = static_cast<int64_t>(bytes), at = static_cast<int64_t>(offset), from = static_cast<int64_t>(source_offset);
  before_placed_write(entry);
  gang_.make_whole({id, source_id});
  if (gang_.is_on() && gang_.gathered({std::min(id, source_id), std::max(id, source_id)}, 0).value() != 0) {
    return gang_.gang().homes().copy(id, at, source_id, from, size);
  }
  const bool all = offset == 0 && size == entry.bytes();
  const auto& target = all ? entry.touch_unwritten(device_) : entry.touch(device_);
  device_.copy(target, at, source.read(device_), from, size);
}

}  // namespace forebay::worker
